"""Commands that serve agents or engines, and the parts that they use.

- `gateway`: `holdfast gateway`, for a run whose agents other programs start.
- `gateway_workers`: `holdfast gateway --workers N`. This process opens the run and reports on it,
  and N other processes serve it.
- `serve`: `holdfast serve`, which runs the embedded engine, or a vLLM, in the foreground.
- `policy`: `holdfast policy check`, which shows what an endpoint can do, and what it lacks for
  training.
"""
