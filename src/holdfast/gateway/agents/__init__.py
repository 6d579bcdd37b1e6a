"""The processors: how an agent is started, watched and ended, and where it works.

- `gateway_processor`: What processors have in common that run agents behind a gateway.
- `subprocess`: BlackBoxRolloutProcessor: an agent that is a program, one process for each attempt.
- `external`: ExternalRolloutProcessor: agents that others start, and that come to the gateway by
  themselves.
- `remote`: RemoteRolloutProcessor: an agent that runs as a service somewhere else.
- `process`: An agent's process: started with the addresses and keys that its SDKs read, watched,
  and ended together with everything that it started.
- `sandboxed_process`: SandboxedProcess: an agent's process in its workspace, within the workspace's
  sandbox.
- `workspace`: AgentWorkspace: the workspace in which an agent works by itself.
- `workspace_policy`: What an agent finds around it when it is started again.
- `attempt`: AttemptSetup: the workspace and the environments of one attempt of an agent, and its
  end.
- `temp_dirs`: Scratch folders: needed while something runs, and removed afterwards.
"""
