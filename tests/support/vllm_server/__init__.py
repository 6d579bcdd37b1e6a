"""A process that stands in for vLLM's: its processes, its flags and its HTTP API, without a model.

- `api_server`: What runs in place of vLLM's server.
- `stand_in`: A Python that has it.
"""
