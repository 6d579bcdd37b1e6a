"""gymnasium's environments.

- `environment`: `GymEnvironment`, for any gymnasium environment whose observations have a text
  form.
- `spaces`: reads actions from replies, formats observations as text, makes values recordable.
"""
