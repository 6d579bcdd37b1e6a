"""Finds, describes and repairs damage.

- `report`: The result of a check.
- `logs`: The rules within one trajectory's log, from its checksums to its meaning.
- `tables`: The rules for the tables that every journal has.
- `pages`: The rules for a SQLite file.
- `repair_tables`: Rebuilds data that a file holds twice: indexes, names of tasks, counts.
- `accept_losses`: Accepts a loss: a file goes back to its last existing commit.
- `check`: Reads a whole file and reports its damage; on request, repairs it.
- `check_server`: Checks and repairs a journal on a PostgreSQL server.
"""
