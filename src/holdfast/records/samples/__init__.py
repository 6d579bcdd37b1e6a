"""What a trajectory comes to: its training view, and its numbers.

- `sample`: A trajectory, or one branch of it, as token ids, mask, logprobs and reward.
- `logprobs`: The distribution that logprobs are of.
- `nearness`: How near logprobs are to exact ones, and what data types explain.
- `experts`: The experts that tokens were routed to.
- `version`: Weight versions, their order, and staleness.
- `replica_weights`: Which weights a replica has, and which of its tokens count.
- `summary`: A trajectory in numbers, for lists and reports.
"""
