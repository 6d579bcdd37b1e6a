"""The pages. Each module reads what its page shows, and gives it to a template.

- `context`: What every page needs.
- `runs`: The list of runs.
- `run`: One run.
- `trajectory`: One trajectory: its conversation, tokens, events and records.
- `training`: The steps of a training, and what moved the model most in a step.
- `token`: Why a token is in the gradient.
- `comparison`: Two runs, task by task, and two trajectories side by side.
- `search`: The search for texts in a run's trajectories.
"""
