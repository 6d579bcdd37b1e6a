"""The present activity of a training, for a display that reads it at any time."""

import time

from holdfast.engine.progress.counters import Progress


class TrainingProgress(Progress):
    """The rollouts' counters, by step, and the activity between rollouts."""

    is_transient = True

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = False
        """Whether a trajectory was sampled, or may have been sampled."""
        self.is_loading = True
        """Whether the model is loaded or checked. Nothing is recorded meanwhile."""
        self._doing = "loading the model"
        self._watched: Progress = self
        self._settled_before = 0
        self._tokens_before = 0

    def enter(self, doing: str) -> None:
        """Begins an activity whose length is not known in advance."""
        self._begin(doing, self)

    def roll_out(self, step: int, *, steps: int, settled: int) -> None:
        """Begins the rollouts of a step. `settled` is the number of the run's trajectories that
        were settled before."""
        self.has_begun = True
        self._begin(f"step {step} of {steps}: rolling out", self)
        self._settled_before = settled

    def evaluate(self, step: int) -> Progress:
        """Begins the evaluation after `step`. Returns the counters of this evaluation."""
        self.has_begun = True
        self._begin(f"evaluating after step {step}", Progress())
        return self._watched

    def _begin(self, doing: str, watched: Progress) -> None:
        self._doing = doing
        self._watched = watched
        self._settled_before = 0
        self._tokens_before = watched.tokens
        self.began = time.monotonic()

    @property
    def is_counted(self) -> bool:
        """Whether the present activity waits for trajectories, so that their counters are shown."""
        return self._watched is not self or "rolling out" in self._doing

    @property
    def is_known(self) -> bool:
        return True

    @property
    def bar(self) -> tuple[int, int]:
        if not self.is_counted:
            return 0, 0
        watched = self._watched
        done = max(0, watched.done_before + watched.done - self._settled_before)
        return done, max(done, watched.total - self._settled_before)

    def line(self) -> str:
        seconds = time.monotonic() - self.began
        done, total = self.bar
        if not total:
            return f"{self._doing}, {seconds:.0f} s"
        rate = (self._watched.tokens - self._tokens_before) / max(1e-9, seconds)
        parts = [
            f"{self._doing}, {done} of {total} trajectories",
            f"{self._watched.running} running",
            f"{rate:,.0f} tokens/s",
            f"{seconds:.0f} s",
        ]
        return ", ".join(parts)
