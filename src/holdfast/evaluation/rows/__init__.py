"""Rows in the form of eval-protocol, and their conversion to and from records.

- `row`: EvaluationRow: one row of a data set with its results, under eval-protocol's names.
- `status`: Status: the state of a rollout or an evaluation, in the form of AIP-193.
- `result`: EvaluateResult: a scorer's result for a row, under eval-protocol's names.
- `convert`: row to task, trajectory to row, result to score.
- `completion_params`: one set of completion params, read.
- `names`: Readable random ids: `quiet-harbor-402913`.
"""
