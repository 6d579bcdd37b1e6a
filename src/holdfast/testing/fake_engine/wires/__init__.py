"""The engines that a fake engine can imitate.

- `registry`: Lists the endpoints of each dialect.
- `vllm`: vLLM's completions, chat completions and `generate`; and a plain OpenAI-like chat.
- `tool_calls`: Finds tool calls in a text that is still being written, as a chat stream reports
  them.
- `experts`: Routed experts as vLLM and SGLang write them.
- `vllm_admin`: vLLM's other endpoints: its load, and the switches of its development mode.
- `sglang`: SGLang's `/generate`.
- `sglang_admin`: SGLang's other endpoints.
- `fireworks`: Fireworks' `/v1/completions`.
- `models`: `/v1/models` of each engine.
"""
