"""The journal on a PostgreSQL server.

- `address`: The URL of a journal: its parts, its switches, and how messages name it.
- `errors`: What PostgreSQL reports, in our words, and which of it is an outage.
- `connection`: One connection to the server, made again after it was lost.
- `schema`: The tables, their version, and what a server promises.
- `witness`: What this machine knows of the commits that a server has acknowledged.
- `appends`: A batch of appends as arrays, for one statement.
- `store`: PostgreSQL as a store: its dialect, and how records lie on a server.
- `committer`: One batch, one transaction, and an outcome that is known.
- `listener`: What other processes say of runs that somebody here waits for.
- `journal`: The journal itself.
- `secret`: A secret that belongs to such a journal.
"""
