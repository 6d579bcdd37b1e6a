"""The rollouts that fit most agents.

- `processor`: RolloutProcessor: the strategy by which tasks become trajectories.
- `agent`: AgentRolloutProcessor and EnvironmentRolloutProcessor: the loops of most agents.
- `dialogue`: DialogueRolloutProcessor: an assistant and a simulated user, each with its own policy.
- `training`: TrainingRolloutProcessor: one reply per sample, as its completion params say.
- `row_clients`: Clients of inference engines that rows name, beside the run's own policy.
"""
