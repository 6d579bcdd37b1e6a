"""The gateway: black-box agents over HTTP, recorded token by token, resumed by replay.

An agent that calls an LLM over HTTP gets the gateway's URL and a key. Each of its calls is a
durable step of its trajectory. If the agent is started again, it gets the recorded answers to the
calls that it repeats, and continues live from where it failed.

How a call is handled, with the nouns that the code uses:

1. HTTP request: its context has the route, the key and the body (`http.request`). The *key* is
   bound to a trajectory here, at another worker (the request is *relayed*), or *unbound*.
2. Request: a *wire* parses the body into the request of a generation, the same for all providers.
3. Call: a request has a *call id*: the digest of its content, and its number among equal calls. A
   recorded call is *replayed*. Any other call is *sampled*, at its *position* in the tree of
   recorded conversations.
4. Subscription: a connection that waits for the call's answer. The sampling continues without the
   connection, and the answer counts as *delivered* when one connection has received it.
5. Answer: durable first, then sent: as deltas of a *stream*, or whole. The wire formats the HTTP
   response.
6. Rejection: an error instead of an answer. The rejection of a call is durable before it is sent.

- `protocol`: requests, answers, keys and errors, the same for every provider's wire.
- `wires`: the formats of OpenAI and Anthropic.
- `calls`: the calls of one agent, replayed or sampled.
- `http`: from a connection to a request, and from an answer to bytes.
- `workers`: several processes that serve one address.
- `server`: the gateway itself: its routes, and the keys that are bound to it.
- `assignment`: trajectories that wait for agents that are started elsewhere.
- `agents`: the rollout processors that put agents behind a gateway.
- `address`, `limits`: where the gateway listens, and limits on what a client may cost it.
"""
