"""The files in a workspace, and their snapshots.

- `tree`: lists a folder, and keeps it within its limit.
- `snapshot`: stores the files of a folder as blobs, and restores them.
"""
