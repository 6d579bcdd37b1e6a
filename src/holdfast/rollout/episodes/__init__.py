"""Environments: their contract, and how an environment is restored after a kill.

- `environment`: Environment: the world in which a policy acts, and how it is restored.
- `episode`: Episode: one environment's durable life within a trajectory.
- `restore`: LiveEnvironment: an episode's present environment, and how it is brought up to date.
- `guarded`: Calls a user's environment with care: each call has a deadline and a thread, its errors
  are classified once, and its results can be recorded.
"""
