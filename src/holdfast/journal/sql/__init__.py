"""The journal's logic, written once over a store.

- `store`: What the journal asks of a database.
- `tables`: The tables that every journal has, and their version.
- `groups`: What follows from a group's trajectories.
- `replicas`: Which weights each replica has.
- `runs`: Runs, their tasks and trajectories, streams and weight versions.
- `lineage`: Runs that share trajectories, only one of which can be consumed.
- `leases`: Workers, leases and claims.
- `logs`: Reading logs, cutting them where they are torn, opening them again.
- `delivery`: The ledger of a run's groups.
- `deletion`: Deleting a run.
- `writer`: One thread, one connection, group commit.
- `sql_journal`: The journal over a store.
"""
