"""Requests, answers, keys and errors, the same for every provider's wire.

- `messages`: the request and the answer of a call, how a wire translates them, and their errors.
- `keys`: signed keys, each for one attempt of one trajectory.
"""
