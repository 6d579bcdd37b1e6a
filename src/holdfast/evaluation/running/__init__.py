"""One evaluation from its definition to its results.

- `experiment`: Experiment: one variant of an evaluation, from its rows to its outcome.
- `call`: What a decorated evaluation does when it is called, with pytest or without it.
- `session`: Session: what the evaluations of one process share.
- `connect`: Connection: the policy that a setting is sampled from, and the renderer of its model.
- `providers`: Providers: hosted engines that go by the first word of a model's name, as in
  `openai/gpt-4o`.
- `resume`: Which recorded run an experiment goes on with, and when it begins another.
- `signals`: SIGINT and SIGTERM in the middle of an evaluation: what is in flight becomes durable
  first.
- `scorer`: The user's function as the engine's scorer.
- `scorer_row`: The row that a scorer is shown: the finished one, with what the evaluation says
  about itself.
- `output_files`: Written: the files that a session leaves of a finished run, its rows and its page.
- `logged_row`: A row that somebody logs, as a run of its own; and all rows of a journal.
"""
