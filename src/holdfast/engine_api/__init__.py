"""The server side of vLLM's HTTP API, which the embedded engine and the fake engine share.

The shapes are as recorded from vLLM 0.32. The clients in `holdfast.policy` have their own types and
import nothing from here. So a test of a client against one of these engines compares two
independent descriptions.

- `requests`: Request bodies, and the checks that every engine makes.
- `responses`: Response bodies: whole, in chunks of a stream, and the list of models.
- `errors`: Error responses, with vLLM's messages and codes.
"""
