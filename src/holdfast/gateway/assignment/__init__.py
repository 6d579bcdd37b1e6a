"""Trajectories that wait for agents that are started elsewhere.

- `queue`: the trajectories that are open in this process, free or taken.
- `routes`: `POST /trajectories`: assigns them to agents, from this worker or from another.
- `unbound_keys`: calls with a key that is signed, and not bound in this process.
- `hold_routes`: `POST /hold` and `/release`: holds from outside, while weights change.
"""
