"""The journal on a PostgreSQL server.

- `address`: The URL of a journal: its parts, its switches, and its name in messages.
- `connection`: A connection to the server that is opened again after a loss, and the server's
  errors.
- `schema`: The tables and their version, the checks of a server, and the commits that it has lost.
- `store`: PostgreSQL as a store: its dialect, and how records lie on a server.
- `journal`: The journal itself, its writer, and its listener to other processes.
"""
