"""The training view of a trajectory, and its numbers.

- `sample`: A trajectory, or one branch of it, as token ids, mask, logprobs and reward.
- `logprobs`: The distribution to which logprobs belong.
- `nearness`: How near logprobs are to exact ones, and which differences data types explain.
- `experts`: The experts that tokens were routed to.
- `version`: Weight versions, their order, and staleness.
- `replica_weights`: Which weights a replica has, and which of its tokens count.
- `summary`: A trajectory in numbers, for lists and reports.
"""
