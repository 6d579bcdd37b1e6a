"""The contract between the code that uses worlds and the providers of worlds.

- `spec`: WorldSpec: the description of a world, parsed from text such as `docker:python:3.12-slim`.
- `world`: the protocols `World` and `WorldProvider`, their values, and `Capabilities`.
- `failures`: the errors of providers.
- `output`: keeps the beginning and the end of a long output.
"""
