"""The journal in one SQLite file.

- `schema`: Its tables, their version, and what is refused at the door.
- `chain`: How the records of one trajectory are found among everybody's.
- `appends`: Fencing and insertion for a whole batch in a handful of statements.
- `store`: SQLite as a store: its dialect, and how records lie in its file.
- `cut`: Mending one log of a file that is being repaired.
- `commits`: The commits of a journal are numbered, and the journal has an identity.
- `handle`: The connection that writes, from one error to the next.
- `checkpoint`: Moves the write-ahead log into the main file, off the writer's path.
- `committer`: One batch, one transaction, and an outcome that is known.
- `creation`: A journal that is new is whole or not there, whenever the power fails.
- `names`: One journal, one name.
- `losses`: Has the journal lost commits?
- `journal`: The journal itself, and the same in memory.
"""
