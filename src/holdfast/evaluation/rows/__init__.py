"""Rows as eval-protocol has them, and their way to and from records.

- `row`: EvaluationRow: one row of a data set and what became of it, under eval-protocol's names.
- `status`: Status: how a rollout or an evaluation stands, in the shape of AIP-193, as eval-protocol
  has it.
- `result`: EvaluateResult: what a scorer says about a row, under eval-protocol's names.
- `convert`: Rows and the engine's own nouns: row to task, trajectory to row, result to score.
- `names`: Names that people can say: `quiet-harbor-402913`.
- `adapters`: Recorded conversations as data sets: what an assistant said becomes what is to be
  said.
- `eval_protocol`: eval-protocol's own classes, where that package is installed beside Holdfast.
"""
