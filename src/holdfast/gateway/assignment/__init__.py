"""Trajectories that wait for agents which others start.

- `queue`: Offers: trajectories that wait for an agent which others start.
- `routes`: Counter: where agents are given trajectories, at this worker or at another.
- `unbound_keys`: Strangers: calls whose key is signed, and not bound in this process.
- `hold_routes`: OutsideHold: a hold that is begun and ended over HTTP, for whoever changes the
  weights of an engine and is no part of the run.
"""
