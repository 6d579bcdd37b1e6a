"""Runs that are carried from one journal to another.

- `run_image`: A run on its way: everything but its logs and blobs.
- `sides`: Out of a journal, and into it, as SQL.
- `copy_runs`: The copy, and its comparison with the original.
"""
