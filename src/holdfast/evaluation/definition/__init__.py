"""What `@evaluation_test` was told, checked.

- `definition`: Definition: what `@evaluation_test` says, read and checked where it stands.
- `validate`: The decorator's arguments, read and checked: each mistake is told with the argument's
  name.
- `completion_params`: Setting: one set of completion params, read.
- `retries`: Retries, as eval-protocol writes them down.
- `fingerprint`: What makes two scorers the same: their code, their mode, and what they are called
  with.
- `options`: Options: what a session says about all of its evaluations.
- `flags`: The words that pytest's command line gains.
- `parameters`: EPParameters: what an `@evaluation_test` was told, for trainers that look it up.
"""
