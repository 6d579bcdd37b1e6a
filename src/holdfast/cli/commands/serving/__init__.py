"""Commands that serve agents or engines, and the parts that they use.

- `gateway`: `holdfast gateway`: a run whose agents are started by other programs.
- `gateway_workers`: `holdfast gateway --workers N`: this process opens the run and reports on it, N
  other processes serve it.
- `serve`: `holdfast serve`: the embedded engine, or a vLLM, in the foreground.
- `policy`: `holdfast policy check`: what an endpoint can do, and what it lacks for training.
"""
