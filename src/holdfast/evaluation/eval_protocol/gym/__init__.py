"""Gyms that are MCP servers.

- `server`: GymServer, the process of an MCP gym.
- `environment`: McpGymEnvironment, one episode of an MCP gym.
- `simulated_user`: SimulatedUser, the user of a gym's row, played by a model.
- `processor`: MCPGymRolloutProcessor, which runs episodes of an MCP gym, whose server it starts and
  stops.
"""
