"""Scoring as a durable phase of its own.

- `engine_use`: What one call of a scorer has of engines: outages, and tokens.
- `retry`: What is tried again: what failed for good, and verdicts that could not be read.
- `scorer`: Scorers: functions from finished trajectories to rewards.
- `reward_functions`: Reward functions that were written for verl or TRL, as scorers.
- `wire`, `process`, `pool`: Scorers in processes of their own, and what is sent to them.
- `settle`: Scoring: its own durable phase, which overlaps with rollouts.
- `late`: Late scoring: what needs more than one task, or more than one run, to be judged.
"""
