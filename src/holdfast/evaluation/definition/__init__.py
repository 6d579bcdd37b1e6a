"""The arguments of `@evaluation_test` and the flags of pytest, checked.

- `definition`: the definition of an evaluation, and its variants.
- `function`: the function that judges, its name in errors, and what it has to be.
- `validate`: the decorator's arguments, read and checked.
- `fingerprint`: the identity of a scorer: its code, its mode and its arguments.
- `flags`: the flags of the pytest plugin.
- `options`: the values of the flags, for all evaluations of a session.
- `parameters`: the decorator's arguments under eval-protocol's names, for trainers.
"""
