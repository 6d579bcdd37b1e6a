"""Copies runs from one journal to another.

- `run_image`: A run on its way: everything except its logs and blobs.
- `sides`: The SQL that reads a run from a journal and writes it into another.
- `copy_runs`: The copy, and its comparison with the original.
"""
