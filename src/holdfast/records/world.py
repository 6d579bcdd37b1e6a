"""World: one environment, as a trajectory's records know it."""

from holdfast.records.step import is_cut_by


class World:
    """What was done to one environment since its opening, and what was kept of it."""

    __slots__ = ("actions", "cuts", "last_step", "snapshots")

    def __init__(self) -> None:
        self.cuts = 0
        """How often actions were taken out of the list."""
        self.actions: list[str] = []
        """The paths of steps and tool calls, in the order in which they took effect."""
        self.snapshots: list[tuple[int, bytes]] = []
        """(after how many actions, the digest of the blob), oldest first."""
        self.last_step = ""
        """The step that was recorded last, in any world, when the newest of them was taken."""

    def cut(self, path: str) -> None:
        first = next((n for n, one in enumerate(self.actions) if is_cut_by(one, path)), None)
        if first is None:
            return
        self.cuts += 1
        # What came before the first one that is gone is as it was; later states are not.
        self.snapshots = [kept for kept in self.snapshots if kept[0] <= first]
        self.actions = [one for one in self.actions if not is_cut_by(one, path)]
