"""An inference engine without a model, with faults on demand.

- `faults`: Defines the faults, and chooses the requests that they hit.
- `options`: The options of a fake engine, and its counters.
- `handle`: `FakeEngine`, which starts, kills and inspects a fake engine in its own process.
- `__main__`: `python -m holdfast.testing.fake_engine`, to start a fake engine by hand.
- `process`: The process in which the fake engine runs.
- `server`: The endpoints, and the path of a request through the server.
- `request`: A request in a form that is the same for all wires, and the interface of wires.
- `wires`: The engines that it can imitate.
- `schedule`: Decides when tokens are drawn, how fast, and with which weights.
- `generation`: One sample while it is drawn.
- `tokens`: The deterministic source of tokens.
- `json_output`: Replies that fit a JSON schema.
- `answer`: The response to one request, plain or streamed, right or with a fault.
- `misbehaviour`: Responses that are wrong on purpose.
- `connection`: Sends JSON and events, and breaks connections.
- `ledger`: Counts requests and tokens.
"""
