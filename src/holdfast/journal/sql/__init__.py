"""The journal's logic, written once over a store.

- `store`: What the journal asks of a database.
- `tables`: The tables that every journal has, and their version.
- `groups`: The counts that follow from a group's trajectories.
- `replicas`: The weights of each replica.
- `worlds`: The ledger of worlds and their snapshots.
- `runs`: Runs, their tasks and trajectories, streams and weight versions.
- `lineage`: Runs that share trajectories, only one of which can be consumed.
- `leases`: Workers, leases and claims.
- `logs`: Reads logs, cuts torn logs, and opens trajectories again.
- `delivery`: The ledger of a run's groups.
- `deletion`: Deletes a run.
- `writer`: One thread, one connection, group commit.
- `journal`: The journal, and what it promises on every database.
- `find_run`: Finds a run by the name that a user typed.
"""
