"""The HTTP interfaces of the engines, by name.

- `dialect`: The interface of a dialect, and the code that the dialects share.
- `prompt_json`: Prompts in JSON, and a cache of them.
- `completions`: `/v1/completions` with token ids, of vLLM and the embedded engine.
- `generate`: vLLM's `/inference/v1/generate`, with the version of each span of tokens.
- `chat`: `/v1/chat/completions` of any OpenAI-compatible server: messages in, a message out.
- `sglang`: SGLang's `/generate` with `input_ids`.
- `fireworks`: Fireworks' `/v1/completions`.
- `sse`: Server-sent events: from bytes to the data of events.
- `experts`: Routed experts as engines write them.
"""

from holdfast.policy.dialects.chat import Chat
from holdfast.policy.dialects.completions import Completions
from holdfast.policy.dialects.dialect import Dialect, Kind
from holdfast.policy.dialects.fireworks import Fireworks
from holdfast.policy.dialects.generate import Generate
from holdfast.policy.dialects.sglang import SGLang

DIALECTS: dict[Kind, Dialect] = {
    dialect.kind: dialect for dialect in (Generate(), Fireworks(), SGLang(), Completions(), Chat())
}
