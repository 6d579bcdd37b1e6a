"""Tools: from a Python function to a schema, a checked call and a result.

- `tool`: Tools: Python functions that a model may call.
- `schema`: What a tool takes: the schema that a model is shown, and the arguments that come of its
  answer.
- `validate`: Arguments against a ready-made JSON schema, in words that a model can act on.
- `docstring`: A docstring, taken apart: what a function does, what its parameters mean, what it
  returns.
- `result`: A tool's result as text: how a return value is rendered for the model.
- `isolated`: Tools that run in processes of their own.
"""
