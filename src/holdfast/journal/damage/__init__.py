"""Damage: found, described, and repaired.

- `check`: Is this journal whole? Reads everything, changes nothing, and says what it finds.
- `logs`: What has to hold within one trajectory's log, from its checksums to its meaning.
- `tables`: What has to hold outside the logs: rows that decode, numbers without gaps, whole
  indexes.
- `repair_tables`: Makes anew what a journal holds twice: indexes, names of tasks, heads and links.
- `finding`: Finding a run by the name that a user typed.
- `accept_losses`: Accepting what is lost: the journal goes back to its last commit that is there.
"""
