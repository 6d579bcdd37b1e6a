"""Gyms that are MCP servers.

- `environment`: McpGymEnvironment: one episode of an MCP gym.
- `processor`: MCPGymRolloutProcessor: episodes of an MCP gym, whose server it starts and ends.
- `server`: GymServer: the process of an MCP gym, and where it listens.
- `simulated_user`: SimulatedUser: the user of a gym's row, played by a model (`user_simulation` in
  its data).
"""
