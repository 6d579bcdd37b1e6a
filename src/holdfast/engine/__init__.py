"""Running many trajectories: isolation, retry, refill, concurrency, deadlines, scoring, progress.

Knows attempts, groups and budgets. Never knows what a rollout does or how tokens are sampled.
"""
