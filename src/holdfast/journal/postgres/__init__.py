"""The journal on a PostgreSQL server.

- `address`: The URL of a journal: its parts, its switches, and how messages name it.
- `connection`: One connection to the server, made again after it was lost, and what it reports.
- `schema`: The tables, their version, what a server promises, and which commits it has lost.
- `store`: PostgreSQL as a store: its dialect, and how records lie on a server.
- `journal`: The journal itself, who writes to it, and who listens to other processes.
"""
