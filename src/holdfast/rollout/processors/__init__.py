"""The rollouts that most agents are.

- `processor`: RolloutProcessor: the strategy by which tasks become trajectories.
- `agent`: AgentRolloutProcessor and EnvironmentRolloutProcessor: the two loops that most agents
  are.
- `dialogue`: DialogueRolloutProcessor: an assistant and a simulated user, each with a policy of its
  own.
- `training`: TrainingRolloutProcessor: one reply per sample, drawn as completion params say.
- `row_clients`: Clients of inference engines that rows name, beside the run's own policy.
"""
