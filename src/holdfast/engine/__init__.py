"""Running many trajectories: isolation, retry, refill, concurrency, deadlines, scoring, progress.

Knows attempts, groups and budgets. Never knows what a rollout does or how tokens are sampled.

- `running`: from the plan of a run to each attempt at a trajectory; `holdfast.run`.
- `judging`: a judge: a model that scores by a rubric.
- `scoring`: scorers, and their durable results.
- `guards`: keeps user code from harming the run.
- `option_kinds`: what an option's text may be.
- `options`: the options of a run, each declared once.
- `settings`: how a run is worked on.
- `stop`: whether the run is to end, and why.
- `arguments`: the arguments of `holdfast.run` as people write them: dicts, addresses and paths.
- `connect`: the policy and the renderer of its model, from an address or the embedded engine.
- `open_policy`: a policy by its address, or the embedded engine, for as long as a block lasts.
- `open_run`: a run that is new, resumed, or refused since it changed.
- `report`: what became of a run, for people.
- `progress`: how far it is.
- `export`: what is read out of a run, for programs; and what its tokens cost.
"""
