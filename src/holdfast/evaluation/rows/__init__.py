"""Rows in the form of eval-protocol, and their conversion to and from records.

- `row`: EvaluationRow, one row of a data set with its results, under eval-protocol's names.
- `status`: Status, the state of a rollout or an evaluation, in the form of AIP-193.
- `result`: EvaluateResult, a scorer's result for a row, under eval-protocol's names.
- `convert`: converts a row to a task, a trajectory to a row, and a result to a score.
- `completion_params`: reads one set of completion params.
- `names`: Readable random ids, such as `quiet-harbor-402913`.
"""
