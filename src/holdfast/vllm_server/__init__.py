"""`holdfast serve --engine vllm`: a vLLM that this machine starts, watches and ends.

The Holdfast process holds the port, the log and the token. vLLM runs in another Python, in its own
session, and none of its processes outlives the Holdfast process.

- `installation`: Which vLLM a Python has, and which versions were tried.
- `command`: The command and the environment that start a vLLM for training.
- `start`: Runs first in each of vLLM's processes, and ends them when our process has ended.
- `access`: A check that vLLM's server lacks: its state is changed only with our token.
- `version_route`: The route for the version of the weights, where vLLM has none.
- `serving`: The process of `holdfast serve --engine vllm`.
"""
