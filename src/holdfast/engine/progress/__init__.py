"""Counts how far a run is as records become durable, and shows it to users and programs.

- `clustered`: the mean of rewards, with a standard error for samples that are clustered by task.
- `counters`: the counters of a run, as a line for people and as a value for programs.
- `watch`: calls a program's own function now and then, and shows a line in a notebook.
"""
