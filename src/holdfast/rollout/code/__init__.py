"""The code that makes rollouts: how it is loaded, and how a changed rollout or scorer is
recognized.

- `load`: loads a user's file once, as a module, and formats the tracebacks of its errors.
- `rewards`: finds out from a rollout's source whether the rollout may give rewards itself.
- `source`: the source of a definition, and the names that the definition uses.
- `values`: turns plain data into a text that is the same in every process.
- `fingerprint`: fingerprints of code, which show whether a rollout or a scorer has changed when its
  run continues.
"""
