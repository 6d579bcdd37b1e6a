"""Optional: what files that were written for eval-protocol need, under its names.

Nothing here is needed by an evaluation of one's own, but for its two `basic` processors.

- `row_processor`: Processors from rows to rows: an adapter for eval-protocol's contract, and its
  post-processors.
- `basic`: The simplest processors: one reply, and none.
- `agent`: AgentRolloutProcessor: its tools can come from the MCP servers of a file.
- `openenv`: OpenEnvRolloutProcessor: episodes of an OpenEnv server, under eval-protocol's names.
- `langgraph`: LangGraphRolloutProcessor: rows through a LangGraph graph.
- `pydantic_ai`: PydanticAgentRolloutProcessor: rows through a pydantic-ai agent.
- `remote_messages`: Requests to eval-protocol's remote servers, and their responses.
- `remote`: RemoteRolloutProcessor: it also speaks eval-protocol's remote protocol.
- `gym`: Episodes of eval-protocol's MCP gyms.
- `loaders`: Data loaders make rows when a test runs.
- `adapters`: Recorded conversations as data sets: an assistant's message becomes the ground truth.
- `retries`: Its configuration of retries.
- `dataset_logger`: DatasetLogger: its store of rows; the default one is the journal.
- `class_checks`: Its functions take our models for theirs, where it is installed.
"""
