"""The journal in one SQLite file.

- `journal`: The journal on SQLite: one file, any number of processes on one machine.
- `schema`: The SQLite schema: its version, its migrations, and what is refused at the door.
- `runs`: Runs, their tasks, trajectories and weight versions, as SQL.
- `leases`: Workers, leases and claims, as SQL.
- `deletion`: Deleting a run, and giving its space back.
- `delivery`: The ledger of a run's groups, as SQL.
- `chain`: The chain: how the records of one trajectory are found among everybody's.
- `appends`: Appending: fencing and insertion for a whole batch in a handful of statements.
- `handle`: Handle: the connection that writes, from one error to the next.
- `writer`: The writer: one thread, one connection, group commit.
- `checkpoint`: Moves the write-ahead log into the main file, off the writer's path.
- `cut`: Reading a log with its checksums, and cutting it where it is torn.
- `commits`: The commits of a journal are numbered, and the journal has an identity.
- `creation`: A journal that is new is whole or not there, whenever the power fails.
- `names`: One journal, one name.
- `losses`: Has the journal lost commits? Looked at before anything is written, and before anyone
  reads.
"""
