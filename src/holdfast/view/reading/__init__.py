"""What pages know about runs and trajectories, read in parts.

- `digest`: A run's trajectories in a short form, made from stored summaries.
- `digests`: The digests of the runs that were looked at last.
- `numbers`: A run in numbers.
- `columns`: The columns of a run's data set.
- `listing`: A run's trajectories, filtered, sorted and in pages.
- `conversation`: A trajectory as a conversation that a person reads.
- `waiting`: What unfinished trajectories wait for, and when attempts failed.
- `tokens`: The tokens of a reply, with what is recorded about each.
- `training`: The steps of a training.
- `gradient`: How a step weighs its tokens.
- `search`: Searches the texts of trajectories.
"""
