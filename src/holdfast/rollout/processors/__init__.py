"""The rollouts that fit most agents.

- `processor`: RolloutProcessor, the base class of objects that turn tasks into trajectories.
- `agent`: AgentRolloutProcessor and EnvironmentRolloutProcessor: the loops of most agents.
- `dialogue`: DialogueRolloutProcessor: an assistant and a simulated user, each with its own policy.
- `training`: TrainingRolloutProcessor: one reply for each sample, as the completion params say.
- `row_clients`: clients of inference engines that rows name, in addition to the run's own policy.
"""
