"""Optional: the names that files written for eval-protocol need.

An evaluation that is written for Holdfast needs only the two `basic` processors.

- `row_processor`: An adapter for processors that take and return rows, as in eval-protocol, and
  their post-processors.
- `basic`: The simplest processors: one generates a single reply, the other generates nothing.
- `agent`: AgentRolloutProcessor, whose tools can come from the MCP servers of a file.
- `openenv`: OpenEnvRolloutProcessor, which runs episodes of an OpenEnv server, under
  eval-protocol's names.
- `langgraph`: LangGraphRolloutProcessor, which runs rows through a LangGraph graph.
- `pydantic_ai`: PydanticAgentRolloutProcessor, which runs rows through a pydantic-ai agent.
- `remote_messages`: Requests to eval-protocol's remote servers, and their responses.
- `remote`: RemoteRolloutProcessor, which also speaks eval-protocol's remote protocol.
- `gym`: Episodes of eval-protocol's MCP gyms.
- `loaders`: Data loaders, which make rows when a test runs.
- `adapters`: Recorded conversations as data sets: an assistant's message becomes the ground truth.
- `retries`: eval-protocol's configuration of retries.
- `dataset_logger`: DatasetLogger, eval-protocol's store of rows; the default is the journal.
- `class_checks`: Makes eval-protocol's functions accept Holdfast's models, if it is installed.
"""
