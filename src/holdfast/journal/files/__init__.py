"""The files of a journal beside its database: the log, the witness, and their folder.

- `folders`: Files and folders that survive a power loss.
- `wal`: Reads SQLite's write-ahead log from outside, to find commits that SQLite will not see.
- `witness`: The witness: a small file outside the journal that knows the number of commits.
"""
