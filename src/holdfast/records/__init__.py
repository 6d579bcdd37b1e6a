"""The basic data types of Holdfast. Read this package first.

The package knows how these values are encoded and validated. It does no I/O except reading a task
file.

- `task`, `epochs`: A row of a data set, and the order in which rows are drawn.
- `run`, `group`, `sampling`: What a run samples, and what becomes of a short group.
- `trajectory`, `step`, `message`, `usage`: A trajectory's identity, the records of its log,
  messages, and counts of tokens.
- `foreign`: Foreign exceptions, which are read without trust.
- `failure`, `errors`, `exit_codes`: What went wrong, classified once, and how a command ends with
  it.
- `history`, `conversation`, `view`: The fold of a log, and what scorers see of it.
- `samples`: The training view, its logprobs, weight versions, and a trajectory in numbers.
- `encoding`: How values are encoded, checked, and kept from showing secrets.
"""
