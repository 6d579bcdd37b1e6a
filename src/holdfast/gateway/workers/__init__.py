"""Several processes that serve one address.

- `supervisor`: starts the workers, and restarts workers that a signal ended.
- `peers`: requests from one worker to the others, and requests of agents that are relayed.
"""
