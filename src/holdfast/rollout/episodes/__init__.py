"""Environments: their contract, and how one comes back after a kill.

- `environment`: Environment: what a policy acts in, and how it comes back after a crash.
- `episode`: Episode: one environment's durable life within a trajectory.
- `restore`: LiveEnvironment: an episode's environment as it is now, and the way back to it.
- `guarded`: A user's environment, called with care: each call has its deadline and its thread, what
  it raises is classified once, and what it returns can be recorded.
"""
