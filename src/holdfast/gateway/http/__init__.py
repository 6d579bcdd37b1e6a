"""HTTP at the gateway: from a connection to a request with its key, and from an answer to bytes.

- `listener`: the sockets of a gateway, and errors of HTTP itself.
- `request`: one HTTP request: its route, its key, its body, its response.
- `errors`: responses to requests that are not served.
- `call_route`: one call of an agent, from its body to its answer or rejection.
- `tool_routes`: the tools of an agent as HTTP routes and as an MCP server.
- `tickets`: answers that another worker relays, until it reports that they arrived.
- `metrics`: what the gateway did, in Prometheus' text format.
"""
