"""Scores trajectories in a separate durable phase.

- `engine_use`: Counts the tokens that one call of a scorer uses, and the outages of its engines.
- `retry`: Finds what is tried again: final failures, and verdicts that could not be read.
- `scorer`: Scorers, which are functions from finished trajectories to rewards.
- `reward_functions`: Turns reward functions that were written for verl or TRL into scorers.
- `wire`, `process`, `pool`: Scorers in separate processes, and the messages to them.
- `settle`: Scores trajectories durably, while rollouts go on.
- `outdated`: Finds verdicts for which the scoring function would make another judge today.
- `late`: Scores that need more than one task, or more than one run.
"""
