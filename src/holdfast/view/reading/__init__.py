"""Reads the data about runs and trajectories that pages show. It reads large data in parts.

- `digest`: A run's trajectories in a short form, made from stored summaries.
- `digests`: The digests of the runs that were looked at last.
- `numbers`: The numbers of a run, such as counts and rewards.
- `columns`: The columns of a run's data set.
- `listing`: Filters and sorts a run's trajectories, and divides them into pages.
- `conversation`: A trajectory as a conversation that a person reads.
- `waiting`: Finds out what unfinished trajectories wait for, and when attempts failed.
- `tokens`: The tokens of a reply, with what is recorded about each.
- `training`: The steps of a training.
- `gradient`: Computes how a step weighs its tokens.
- `search`: Searches the texts of trajectories.
"""
