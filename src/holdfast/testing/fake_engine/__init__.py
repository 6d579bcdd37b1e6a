"""An inference engine without a model, with faults on demand.

- `faults`: Which faults exist, and which requests they hit.
- `options`: The options of a fake engine, and its counters.
- `handle`: `FakeEngine`: starts, kills and questions a fake engine in its own process.
- `__main__`: `python -m holdfast.testing.fake_engine`, to start a fake engine by hand.
- `process`: The process in which the fake engine runs.
- `server`: The endpoints, and the path of a request through the server.
- `request`: A request, whatever its wire; and the interface of wires.
- `wires`: The engines that it can imitate.
- `schedule`: When tokens are drawn: with which weights, how fast, and not during a pause.
- `generation`: One sample while it is drawn.
- `tokens`: The deterministic source of tokens.
- `json_output`: Replies that fit a JSON schema.
- `answer`: The response to one request, plain or streamed, right or with a fault.
- `misbehaviour`: Responses that are wrong on purpose.
- `connection`: JSON, events and broken connections on a socket.
- `ledger`: Counts requests and tokens.
"""
