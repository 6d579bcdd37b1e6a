"""The journal on PostgreSQL: any number of processes on any number of machines.

- `address`: The URL of such a journal: its parts, its switches, and how it is named in messages.
- `errors`: What PostgreSQL reports, in our words, and which of it is an outage.
- `schema`: The tables and functions, their version, and what a server has to promise.
- `connection`: One connection, made again after it was lost.
- `runs`: Runs, their tasks, trajectories and weight versions, as SQL.
- `leases`: Workers, leases and claims, as SQL.
- `deletion`: Deleting a run, and giving its space back.
- `delivery`: The ledger of a run's groups, as SQL.
- `logs`: Reading logs with their checksums, and cutting them where they are torn.
- `appends`: A batch of appends as arrays, for one statement.
- `witness`: What this machine knows of the commits that a server has acknowledged.
- `writer`: The writer: one task, one connection, group commit, and outcomes that are known.
- `journal`: The journal itself.
- `secret`: A secret that belongs to such a journal.
"""
