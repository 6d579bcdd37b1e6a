"""A stand-in for TRL: what its trainers give to a rollout function, and take from one."""
