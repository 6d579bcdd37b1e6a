"""The dialects that Holdfast speaks, by name."""

from holdfast.policy.dialects.chat import Chat
from holdfast.policy.dialects.completions import Completions
from holdfast.policy.dialects.dialect import Dialect, Kind
from holdfast.policy.dialects.fireworks import Fireworks
from holdfast.policy.dialects.generate import Generate
from holdfast.policy.dialects.sglang import SGLang

DIALECTS: dict[Kind, Dialect] = {
    dialect.kind: dialect for dialect in (Completions(), Generate(), SGLang(), Fireworks(), Chat())
}
