"""The calls of one agent: matched with the record, then replayed or sampled.

- `unsupported`: what the policy cannot follow, removed from a request or rejected.
- `digest`: when two requests, two sets of tools, or two conversations are the same.
- `prefix_tree`: the position of a request among the recorded conversations.
- `raw_prompts`: the same for the prompts of `/v1/completions`.
- `call`: one call: its request, its answer while it is sampled, and the connections that wait.
- `answer`: a recorded call as the answer that its agent gets, and what requests refer to.
- `attempt_status`: what the record says of an attempt, and which answers its agent has received.
- `rejections`: the calls of an attempt that were rejected, or could not be answered.
- `probes`: calls with which a framework tries its model; no part of the trajectory.
- `tool_calls`: the tools that an agent calls through the gateway, each call a durable step.
- `trajectory`: AgentTrajectory: one attempt of an agent, with all of the above.
"""
