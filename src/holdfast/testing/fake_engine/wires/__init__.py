"""The engines that it can look like.

- `registry`: Which endpoints each dialect of the fake engine has.
- `chat`: `/v1/chat/completions`, plain and streamed: vLLM's as recorded from 0.32, or a plain
  OpenAI-like server's, which knows no token ids and ignores who asks for them.
- `completions`: vLLM's `/v1/completions`, plain and streamed, as recorded from vLLM 0.32.
- `generate`: vLLM's `/inference/v1/generate`: tokens in, tokens out, with the weights that sampled
  each span.
- `fireworks`: Fireworks' `/v1/completions`, plain and streamed.
- `sglang`: SGLang's `/generate`, plain and streamed.
- `sglang_admin`: What SGLang serves beside sampling: itself, and its switches for training.
- `tool_calls`: Tool calls in a text that is still being written: what a chat stream shows of them,
  and when.
- `vllm_admin`: What vLLM serves beside sampling: itself, its load, and the switches of its
  development mode.
"""
