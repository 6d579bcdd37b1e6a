"""The journal in one SQLite file.

- `schema`: The file's tables, version and identity, its creation, and the files that are refused.
- `chain`: How records are appended, and how the records of one trajectory are found.
- `store`: SQLite as a store: its dialect, and how records lie in its file.
- `committer`: One batch, one transaction, and an outcome that is known.
- `checkpoint`: Moves the write-ahead log into the main file, off the writer's path.
- `losses`: Finds out whether the journal has lost commits.
- `journal`: The journal in a file, and the journal in memory.
"""
