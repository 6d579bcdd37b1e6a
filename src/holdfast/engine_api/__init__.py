"""The server side of vLLM's HTTP API: what the embedded engine and the fake one have in common.

Shapes as recorded from vLLM 0.32. The clients in `holdfast.policy` have types of their own and
import nothing from here: a test of a client against either engine compares two descriptions.

- `requests`: Request bodies, and the checks that every engine makes.
- `responses`: Response bodies: whole, in chunks of a stream, and the list of models.
- `errors`: Error responses, with vLLM's messages and codes.
"""
