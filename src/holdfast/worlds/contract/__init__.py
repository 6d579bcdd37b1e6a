"""What a world is, for everyone who uses one or provides one.

- `spec`: WorldSpec: what a world has to be, parsed from text such as `docker:python:3.12-slim`.
- `world`: the protocols `World` and `WorldProvider`, their values, and `Capabilities`.
- `failures`: the errors of providers.
- `output`: keeps the beginning and the end of a long output.
"""
