"""The calls of one agent: matched with the record, then replayed or sampled.

- `strip_fields`: configured fields are removed from a request before its wire parses it.
- `lookup`: what a wire can look up while it parses: cached conversations, recorded answers.
- `unsupported`: rejections of what the policy cannot follow.
- `digest`: when two requests, or two conversations, are the same.
- `tool_schemas`: the tools of requests, as they were sent and as they are compared.
- `prefix_tree`: the position of a request among the recorded conversations.
- `raw_prompts`: the same for the prompts of `/v1/completions`.
- `call`: one call: its identity, its request, and the connections that wait for its answer.
- `stream`: an answer while it is sampled.
- `answer`: a recorded call as the answer that its agent gets.
- `heard`: which answers the agent of an attempt is known to have received.
- `rejections`: the calls of an attempt that were rejected, or could not be answered.
- `probes`: calls with which a framework tries its model; no part of the trajectory.
- `tool_calls`: the tools that an agent calls through the gateway, each call a durable step.
- `attempt_status`: what the journal says of an attempt that is not open here.
- `trajectory`: AgentTrajectory: one attempt of an agent, with all of the above.
"""
