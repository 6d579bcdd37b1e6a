"""The pages. Each module reads the data of its page, and gives the data to a template.

- `context`: The objects that every page needs.
- `runs`: The list of runs.
- `run`: One run.
- `trajectory`: One trajectory: its conversation, tokens, events and records.
- `training`: The steps of a training, and the tokens that moved the model most in a step.
- `token`: The reasons why a token is in the gradient.
- `comparison`: Compares runs task by task, and shows two trajectories side by side.
- `search`: Searches the texts of a run's trajectories.
"""
