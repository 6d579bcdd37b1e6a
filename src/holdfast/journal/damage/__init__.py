"""Damage: found, described, and repaired.

- `report`: What a check found.
- `logs`: What has to hold within one trajectory's log, from its checksums to its meaning.
- `tables`: What has to hold in the tables that every journal has.
- `pages`: What has to hold in a SQLite file.
- `repair_tables`: Makes anew what a file holds twice: indexes, names of tasks, counts.
- `accept_losses`: Accepting what is lost: a file goes back to its last commit that is there.
- `check`: Reads a whole file and says what is damaged; on request, repairs it.
- `check_server`: The same for a journal on a PostgreSQL server.
"""
