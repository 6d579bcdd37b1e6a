"""Rows in the form of eval-protocol, and their conversion to and from records.

- `row`: EvaluationRow: one row of a data set with its results, under eval-protocol's names.
- `status`: Status: the state of a rollout or an evaluation, in the form of AIP-193.
- `result`: EvaluateResult: a scorer's result for a row, under eval-protocol's names.
- `convert`: row to task, trajectory to row, result to score.
- `names`: Readable random ids: `quiet-harbor-402913`.
- `adapters`: Recorded conversations as data sets: an assistant's message becomes the ground truth.
- `eval_protocol`: Makes our models subclasses of eval-protocol's, where it is installed.
"""
