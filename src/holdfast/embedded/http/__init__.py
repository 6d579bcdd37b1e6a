"""The engine's HTTP interface, in vLLM's shape.

- `server`: The HTTP side: OpenAI-compatible, as vLLM answers, over one engine.
- `parse_request`: From a request's body to generations: parameters read, prompts made into ids, all
  checked.
- `parse_fields`: The parameters of a request's body, read one by one: what is wrong is refused by
  its name.
- `chat_prompt`: Messages and tools to a prompt, by the tokenizer's own chat template.
- `completions_response`: The answers of `/v1/completions` and `/inference/v1/generate`, in vLLM's
  shape.
- `chat_response`: The answers of `/v1/chat/completions`, in vLLM's shape, with `weight_versions` in
  each choice.
- `parse_tool_calls`: Tool calls in a model's text: `<tool_call>{"name": …, "arguments":
  …}</tool_call>`.
- `request_state`: A request that is being answered: its generations and what its answers have in
  common.
- `token_queue`: From the engine's thread to the requests that wait for its tokens.
- `weight_routes`: Weights and pauses over HTTP.
- `metrics`: `/metrics` in Prometheus' text format.
- `errors`: Errors in OpenAI's shape, with the codes and names that vLLM gives them.
"""
