"""The code that makes rollouts: which files it consists of, and its fingerprint.

- `source`: Source: the code that a fingerprint stands for.
- `files`: The files that code consists of: its own, and those modules of the user's own that it
  imports.
- `fingerprint`: Fingerprints of code: what makes a rollout, or a scorer, the same when its run goes
  on.
"""
