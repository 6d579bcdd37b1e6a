"""The engine's HTTP interface, in vLLM's shape (`holdfast.engine_api`).

- `server`: The routes, including `/metrics`, and the handling of a request.
- `parse_request`: Decodes and checks a body, and makes its generations.
- `chat_prompt`: Turns messages and tools into a prompt, by the tokenizer's own chat template.
- `token_queue`: Hands tokens from the engine's thread to the requests that wait for them.
- `response`: Makes the responses to one request from its generations.
- `parse_tool_calls`: Finds tool calls in a model's text.
- `weight_routes`: Weights and pauses.
"""
