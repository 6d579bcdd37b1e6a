"""A judge is a model that scores finished trajectories by a rubric.

- `arguments`: checks a judge's arguments when it is made.
- `prompt`: builds a judge's prompt, and reads its answer.
- `cache`: keeps verdicts by question, so that no question is asked twice.
- `connection`: a judge's connection to its engine, with the wait for an engine that is down.
- `judge`: the judge itself, as a scorer of trajectories and of groups.
"""
