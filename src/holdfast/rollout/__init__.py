"""How one trajectory is made: the durable context, tools, and processors.

Knows the journal's records and a policy. Never knows how many trajectories there are, never
retries, and never decides what a failure means.
"""
