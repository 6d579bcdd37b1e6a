"""Processors under eval-protocol's names.

- `row_processor`: Processors from rows to rows: an adapter for eval-protocol's contract, and its
  post-processors.
- `basic`: The simplest processors: one reply, and none.
- `mcp_config`: The MCP servers of a config file.
- `agent`: AgentRolloutProcessor: its tools can come from the MCP servers of a file.
- `openenv`: OpenEnvRolloutProcessor: episodes of an OpenEnv server, under eval-protocol's names.
- `langgraph`: LangGraphRolloutProcessor: rows through a LangGraph graph.
- `pydantic_ai`: PydanticAgentRolloutProcessor: rows through a pydantic-ai agent.
- `remote_messages`: Requests to eval-protocol's remote servers, and their responses.
- `remote`: RemoteRolloutProcessor: it also speaks eval-protocol's remote protocol.
- `gym`: Episodes of eval-protocol's MCP gyms.
"""
