"""Processors by the names that eval-protocol has for them.

- `basic`: Processors that evaluations have beside those of `holdfast`.
- `agent`: AgentRolloutProcessor as evaluations have it: its tools come from the MCP servers of a
  file.
- `mcp_config`: The MCP servers that a config file names, as editors and eval-protocol write it
  down: `{"mcpServers": {name: {"command": …, "args": […], "env": …} | {"url": …}}}`.
- `openenv`: OpenEnvRolloutProcessor: episodes of an OpenEnv server, under eval-protocol's names.
- `langgraph`: LangGraphRolloutProcessor: rows through a LangGraph graph, as eval-protocol has it.
- `pydantic_ai`: PydanticAgentRolloutProcessor: rows through a pydantic-ai agent, as eval-protocol
  has it.
- `remote`: RemoteRolloutProcessor as evaluations have it: it also speaks eval-protocol's remote
  protocol.
- `remote_messages`: What eval-protocol's remote servers are sent, and what they say, under its
  names.
- `row_processor`: Processors that take rows and give rows: eval-protocol's contract, at the border
  of ours.
- `post_processor`: Checks of a row that was rolled out, before it is recorded: eval-protocol's
  post-processors.
- `gym`: Episodes of eval-protocol's MCP gyms.
"""
