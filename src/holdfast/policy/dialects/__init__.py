"""The dialects that Holdfast speaks, by name.

- `dialect`: Dialect: how one kind of inference engine is asked, and how its answers are read.
- `prompt_json`: Spelling: prompts as the JSON that engines are sent.
- `completions`: `/v1/completions` with token-id prompts, as vLLM and the embedded engine speak it.
- `generate`: vLLM's `/inference/v1/generate`: token in, token out, and the weights that sampled
  each span.
- `chat`: `/v1/chat/completions` of any OpenAI-compatible server: messages in, a message out.
- `sglang`: SGLang's `/generate` with `input_ids`.
- `fireworks`: Fireworks' `/v1/completions`: ids and logprobs side by side in `logprobs.content`.
- `sse`: Server-sent events: a stream of bytes cut into the data of its events.
- `reading`: What the dialects read alike.
- `choices`: What the wires have in common whose answers are a list of choices and a usage.
"""

from holdfast.policy.dialects.chat import Chat
from holdfast.policy.dialects.completions import Completions
from holdfast.policy.dialects.dialect import Dialect, Kind
from holdfast.policy.dialects.fireworks import Fireworks
from holdfast.policy.dialects.generate import Generate
from holdfast.policy.dialects.sglang import SGLang

DIALECTS: dict[Kind, Dialect] = {
    dialect.kind: dialect for dialect in (Completions(), Generate(), SGLang(), Fireworks(), Chat())
}
