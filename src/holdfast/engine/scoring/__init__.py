"""Scoring as a durable phase of its own.

- `scorer`: Scorers: functions from finished trajectories to rewards.
- `settle`: Scoring: its own durable phase, which overlaps with rollouts.
- `late`: Late scoring: what needs more than one task, or more than one run, to be judged.
"""
