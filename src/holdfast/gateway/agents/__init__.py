"""The rollout processors: how an agent is started, watched and ended, and where it works.

- `gateway_processor`: the common part of processors that run agents behind a gateway.
- `subprocess`: BlackBoxRolloutProcessor: an agent that is a program, one process for each attempt.
- `external`: ExternalRolloutProcessor: agents that are started elsewhere, and that come to the
  gateway by themselves.
- `remote`: RemoteRolloutProcessor: an agent that runs as a service somewhere else.
- `process`: an agent's process, on this machine or in a sandbox.
- `workspace`: the folder that an agent finds when it is started again, and the workspace in which
  it works by itself.
- `attempt`: AttemptSetup: the workspace and the environments of one attempt of an agent, and its
  end.
- `temp_dirs`: scratch folders that are removed after use.
"""
