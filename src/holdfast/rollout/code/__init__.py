"""The code that makes rollouts: how it is loaded, which files it consists of, its fingerprint.

- `load`: Loading a file of the user's as a module, once, and the tracebacks of what it raises.
- `source`: Source: the code that a fingerprint stands for.
- `helpers`: Helpers of evaluations: what of a file is there for its evaluations alone.
- `definitions`: Definitions: where in its file a function or a class is written.
- `changes`: Changes: what a function, or the methods of a class, change of what they are made with.
- `made_at_start`: Made at start: which variables are set to what is another one at each start of
  the program.
- `named`: Named: the objects with an identity of their own that code reaches by name.
- `rewards`: Whether a rollout may give its trajectories a reward itself, by its source.
- `files`: The files that code consists of: its own, and those modules of the user's own that it
  imports.
- `starts`: which values are of this start of the program alone
- `values`: Values: what code was made with, beside its source.
- `fingerprint`: Fingerprints of code: what makes a rollout, or a scorer, the same when its run goes
  on.
"""
