"""Damage: found, described, and repaired.

- `check`: Reads everything and says what is damaged; on request, repairs it.
- `logs`: What has to hold within one trajectory's log, from its checksums to its meaning.
- `tables`: What has to hold outside the logs: rows that decode, numbers without gaps, whole
  indexes.
- `repair_tables`: Makes anew what a journal holds twice: indexes, names of tasks, heads and links.
- `accept_losses`: Accepting what is lost: the journal goes back to its last commit that is there.
- `check_server`: The same for a journal on a PostgreSQL server.
"""
