"""The code that makes rollouts: how it is loaded, and what makes it the same code.

- `load`: Loads a file of the user's once, as a module, and formats the tracebacks of its errors.
- `rewards`: Whether a rollout may give its trajectories a reward itself, judged by its source.
- `source`: Source: the definition of an object, and the names in that definition.
- `values`: Values: plain data as a text that is the same in every process.
- `fingerprint`: Fingerprints of code: whether a rollout or a scorer is the same when its run
  continues.
"""
