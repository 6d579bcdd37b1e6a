"""The journal in one SQLite file.

- `schema`: Its tables, their version, its identity, how it is created, and what is refused at the
  door.
- `chain`: How records are appended, and how those of one trajectory are found.
- `store`: SQLite as a store: its dialect, and how records lie in its file.
- `committer`: One batch, one transaction, and an outcome that is known.
- `checkpoint`: Moves the write-ahead log into the main file, off the writer's path.
- `losses`: Has the journal lost commits?
- `journal`: The journal itself, and the same in memory.
"""
