"""An inference engine without a model, with faults on demand.

- `faults`: Faults that the fake engine commits on purpose, as values.
- `handle`: A fake inference engine: a real HTTP server in a process of its own.
- `process`: The process that the fake engine runs in.
- `server`: The HTTP side of the fake engine: which endpoints there are, and what a call goes
  through.
- `answer`: How the fake engine answers one request: plain or streamed, rightly or with a fault.
- `connection`: What goes over a connection of the fake engine: JSON, events, and broken
  connections.
- `generation`: One sample of the fake engine while it is drawn: token by token, or all at once.
- `schedule`: When the fake engine draws tokens: with which weights, how fast, and not while it is
  paused.
- `tokens`: The tokens of the fake engine.
- `request`: A request to the fake engine, whatever its wire; and what a wire is.
- `json_output`: JSON that the fake engine writes where a request asks for it: any object, or one of
  a schema.
- `ledger`: What the fake engine has seen and done.
- `misbehaviour`: Answers that are wrong on purpose, whatever the wire: lies about a job, and
  spoiled pieces.
- `models`: What a fake engine says of itself: which model it serves, and which engine it is.
- `options`: What a fake engine is told when it starts, and what it counts.
- `errors`: Error answers of the fake engine: the recorded words of vLLM 0.32, in its recorded
  shape.
- `structured`: What a reply is kept to, as vLLM's requests say it.
- `__main__`: `python -m holdfast.testing.fake_engine`: one that is started by hand.
- `wires`: Room.
"""
