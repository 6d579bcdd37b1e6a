"""The calls of one agent: matched with what is recorded, then replayed or sampled.

- `trajectory`: AgentTrajectory: one attempt of a black-box agent, whose calls are the steps.
- `call`: Asked: one call of an agent while it is answered: what it asks, and which call it is.
- `stream`: Live: a call while it is sampled, as those who wait for it are told.
- `answer`: Told: a recorded call as the agent is told it, now and whenever it asks again.
- `digest`: When are two requests, or two conversations, the same?.
- `digest_cache`: Remembered: the latest conversations of one trajectory, so that what was read is
  not read again.
- `prefix_tree`: Tree: the calls of one trajectory, and where a new one belongs.
- `raw_prompts`: Bare prompts: what `/v1/completions` asks, a text or tokens instead of a
  conversation.
- `tool_schemas`: Shown tools: the tools that the calls of one trajectory show, as they were sent
  and as they are compared.
- `tool_calls`: AgentTools: the tools that an agent calls through the gateway, each call a durable
  step.
- `unsupported`: What a request asks of a policy that cannot do it, said by the name that its wire
  has for it.
- `strip_fields`: Ignoring: what is taken out of every request before it is read, by the wish of
  whoever runs the gateway.
- `attempt_status`: Standing: what the journal says of a trajectory that is not open here, or not
  yet.
- `lenient`: Lenient: a request whose wire does not know all of it, read once more without what says
  nothing.
- `earlier_responses`: Past: what a trajectory's agent was answered before, for requests that refer
  to it by its id.
- `rejections`: Refusals: the calls of one attempt that were refused, or could not be answered.
"""
