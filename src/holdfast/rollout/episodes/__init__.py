"""Environments, their contract, and the code that restores an environment after a kill.

- `environment`: Environment, the base class of everything that a policy can act in.
- `episode`: Episode: the recorded actions and answers of one environment within a trajectory.
- `restore`: LiveEnvironment: restores an environment to the state that its records describe.
- `guarded`: calls a user's environment with a deadline and in a thread, classifies its errors once,
  and checks that its results can be recorded.
"""
