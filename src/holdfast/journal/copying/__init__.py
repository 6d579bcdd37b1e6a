"""Copies runs from one journal to another.

- `sides`: Reads a run from a journal and writes it into another.
- `copy_runs`: The copy, and its comparison with the original.
"""
