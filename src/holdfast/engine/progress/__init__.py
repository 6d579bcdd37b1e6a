"""Counts how far a run is as records become durable, and shows it to users and programs.

- `clustered`: a mean of rewards, with an error that knows that samples of a task are alike.
- `counters`: the counters of a run, as a line for people and as a value for programs.
- `watch`: calls a program's own function now and then, and shows a line in a notebook.
"""
