"""The code that makes rollouts: how it is loaded, and what makes it the same code.

- `load`: Loading a file of the user's as a module, once, and the tracebacks of what it raises.
- `rewards`: Whether a rollout may give its trajectories a reward itself, by its source.
- `source`: Source: how something is defined, and which names its definition has in it.
- `values`: Values: plain data as a text that is the same in every process.
- `fingerprint`: Fingerprints of code: what makes a rollout, or a scorer, the same when its run goes
  on.
"""
