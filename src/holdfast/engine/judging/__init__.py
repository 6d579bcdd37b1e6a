"""A judge: a model that scores finished trajectories by a rubric.

- `arguments`: a judge's arguments, checked when it is made.
- `prompt`: what a judge is shown, and how its answer is read.
- `cache`: verdicts by what was asked, so that nothing is asked twice.
- `connection`: its connection to its engine, which is waited for when it is down.
- `judge`: the judge itself, as a scorer of trajectories and of groups.
"""
