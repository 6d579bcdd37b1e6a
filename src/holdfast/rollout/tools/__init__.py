"""Makes tools of Python functions, with schemas, checked calls and results.

- `tool`: Python functions that a model may call.
- `schema`: the parameters of a tool: the schema that a model sees, and the arguments decoded from
  its answer.
- `validate`: checks arguments against a ready-made JSON schema, with errors that help a model.
- `docstring`: splits a docstring into the description, the parameters and the return value.
- `result`: converts the return value of a tool to the text that the model sees.
- `isolated`: tools that run in separate processes.
"""
