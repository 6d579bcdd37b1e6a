"""NeMo-RL's replay buffer, by its documented rules: a step takes exactly the groups that are meant
for it, all or none, and groups that are too old are evicted."""


class ReplayBuffer:
    def __init__(self, max_size: int):
        self.max_size = max_size
        self.entries: list[tuple[dict, int, int]] = []

    def add(self, trajectory, weight_version, target_weight_version) -> str:
        if len(self.entries) >= self.max_size:
            return "full"
        self.entries.append((trajectory, weight_version, target_weight_version))
        return "success"

    def size(self) -> int:
        return len(self.entries)

    def state_dict(self) -> dict:
        trajectories, versions, targets = zip(*self.entries, strict=True)
        return {
            "trajectories": list(trajectories),
            "trajectory_versions": list(versions),
            "target_weight_versions": list(targets),
            "last_target_weight_already_generated": -1,
            "max_size": self.max_size,
        }

    def sample(self, num_prompt_groups, current_weight_version, max_age_steps):
        oldest = max(0, current_weight_version - max_age_steps)
        self.entries = [entry for entry in self.entries if entry[1] >= oldest]
        meant = [entry for entry in self.entries if entry[2] == current_weight_version]
        if len(meant) < num_prompt_groups:
            return None
        chosen = meant[:num_prompt_groups]
        self.entries = [e for e in self.entries if not any(e is c for c in chosen)]
        return {"trajectories": [trajectory for trajectory, _, _ in chosen]}


class Handle:
    """The same as a handle of a Ray actor: `handle.add.remote(…)`, read by `ray.get`."""

    def __init__(self, actor: ReplayBuffer):
        self._actor = actor

    def __getattr__(self, name):
        return _Method(getattr(self._actor, name))


class _Method:
    def __init__(self, method):
        self._method = method

    def remote(self, *args):
        return self._method(*args)
