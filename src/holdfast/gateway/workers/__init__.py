"""Several processes that serve one address.

- `supervisor`: Supervisor: several workers that serve one address.
- `peers`: Peers: the other workers of one gateway.
"""
