"""Tools: from a Python function to a schema, a checked call and a result.

- `tool`: Tools: Python functions that a model may call.
- `schema`: The parameters of a tool: the schema that a model sees, and the arguments decoded from
  its answer.
- `validate`: Checks arguments against a ready-made JSON schema, with errors that help a model.
- `docstring`: Splits a docstring into the description, the parameters and the return value.
- `result`: A tool's result as text: how a return value is rendered for the model.
- `isolated`: Tools that run in separate processes.
"""
