"""Requests, answers, keys and errors, the same for every provider's wire.

- `messages`: the request and the answer of a call, and how a wire translates them.
- `keys`: signed keys, each for one attempt of one trajectory.
- `errors`: failures of an agent itself.
"""
