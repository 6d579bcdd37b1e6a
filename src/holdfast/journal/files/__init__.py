"""The files of a journal beside its database: the log, the witness, and their folder.

- `folders`: Files and folders that a power loss does not take away.
- `wal`: SQLite's write-ahead log, looked at from outside: does it hold commits that SQLite will not
  see?.
- `witness`: The witness: a small file outside the journal that knows how many commits there were.
"""
