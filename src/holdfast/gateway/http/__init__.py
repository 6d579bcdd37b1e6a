"""HTTP at the gateway: from a connection to a request with its key, and from an answer to bytes.

- `listener`: Listener: the sockets of a gateway, and what HTTP itself can do wrong.
- `request`: Visit: one request as it comes: where it goes, whose it is, and its body within bounds.
- `response`: Telling: how a request's answer goes back, as JSON or as a stream of events.
- `errors`: Refusing: how a request that is not served is told so.
- `exceptions`: What a call comes to, as its agent is told: the answer, or why there is none.
- `count_tokens`: How long the prompt of a request would be: counted, not sampled, and nothing of it
  recorded.
- `metrics`: Metrics: what the gateway did, in Prometheus' text format.
- `tool_routes`: The tool endpoint: how an agent lists the tools that it was given, and calls them.
- `tool_mcp`: The tools as an MCP server: streamable HTTP without a session, each answer plain JSON.
- `relay`: Relay: a request that belongs to another worker of the same gateway, answered through it.
- `call_route`: Calling: one call of an agent, from its body to the answer that it is told, or to
  its refusal.
"""
