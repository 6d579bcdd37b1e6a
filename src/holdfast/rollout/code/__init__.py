"""The code that makes rollouts: how it is loaded, and what makes it the same code.

- `load`: Loading a file of the user's as a module, once, and the tracebacks of what it raises.
- `rewards`: Whether a rollout may give its trajectories a reward itself, by its source.
- `own_modules`: Which code is the user's own: not Holdfast's, not Python's, and not installed.
- `source`: Source: how something is defined, and which names its definition has in it.
- `values`: Values: plain data as a text that is the same in every process.
- `parts`: Parts: what a rollout, a scorer or a judge is made of, each under its name.
- `fingerprint`: Fingerprints of code: what makes a rollout, or a scorer, the same when its run goes
  on.
"""
