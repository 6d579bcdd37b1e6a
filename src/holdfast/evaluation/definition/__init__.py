"""The arguments of `@evaluation_test` and the flags of pytest, checked.

- `definition`: the definition of an evaluation, and its variants.
- `validate`: the decorator's arguments, read and checked.
- `flags`: the flags of the pytest plugin.
- `options`: the values of the flags, for all evaluations of a session.
- `parameters`: the decorator's arguments under eval-protocol's names, for trainers.
"""
