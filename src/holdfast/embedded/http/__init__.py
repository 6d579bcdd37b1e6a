"""The engine's HTTP interface, in vLLM's shape (`holdfast.engine_api`).

- `server`: The routes, including `/metrics`, and the handling of a request.
- `parse_request`: From a body to generations: decoded, checked, prompts made into ids.
- `chat_prompt`: Messages and tools to a prompt, by the tokenizer's own chat template.
- `token_queue`: From the engine's thread to the requests that wait for its tokens.
- `response`: The responses to one request, made from its generations.
- `parse_tool_calls`: Tool calls in a model's text.
- `weight_routes`: Weights and pauses.
"""
