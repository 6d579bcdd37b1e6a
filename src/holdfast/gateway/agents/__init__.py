"""The processors: how an agent is started, watched and ended, and where it works.

- `gateway_processor`: What all processors have in common whose agents speak to a gateway.
- `subprocess`: BlackBoxRolloutProcessor: an agent that is a program, one process for each attempt.
- `external`: ExternalRolloutProcessor: agents that others start, and that come to the gateway by
  themselves.
- `remote`: RemoteRolloutProcessor: an agent that runs as a service somewhere else.
- `process`: An agent's process: started with the addresses and keys that its SDKs read, watched,
  and ended together with everything that it started.
- `sandboxed_process`: FolderProcess: an agent's process in its workspace, within the workspace's
  sandbox.
- `workspace`: AgentFolder: the workspace that an agent works in with its own hands.
- `workspace_policy`: Worlds: what an agent that is started again finds around it.
- `attempt`: Scene: the world and the environments of one attempt of an agent, and what follows its
  end.
- `temp_dirs`: Scratch: folders that are needed while something runs, and that nobody wants
  afterwards.
"""
