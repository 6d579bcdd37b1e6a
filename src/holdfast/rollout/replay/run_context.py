"""RunContext: the objects that all attempts of a run share. The engine makes it once and never
changes it.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct, field

from holdfast.clock import Clock
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Cut
from holdfast.records.run import RunSpec
from holdfast.records.step import Record
from holdfast.rollout.replay.speaker import Speaker


class OnDivergence(StrEnum):
    """What Holdfast does if a rollout asks for a step that differs from the recorded one."""

    FORK = "fork"
    """Turn the old steps into history, and run the rollout live from the first step that
    differs."""
    FAIL = "fail"
    """Fail the trajectory."""


class RunContext(Struct, frozen=True):
    """The objects that all attempts of a run share: its spec, its journal, its speaker, and
    callbacks of the engine."""

    spec: RunSpec
    journal: Journal
    speaker: Speaker
    """The run's own policy and renderer."""
    clock: Clock
    worker: str
    """The name of this process in the records of its attempts."""
    on_divergence: OnDivergence = OnDivergence.FORK
    lost_versions: frozenset[str] = frozenset()
    """The versions of the weights that no engine has any more. A trajectory that was sampled with
    such a version starts over. Empty unless each trajectory of the run has to keep one version."""
    partial_tokens: int = 0
    """After this many new tokens, an unfinished generation is made durable again. With 0, a
    generation becomes durable only when it is complete."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the run is asked to stop. Then no new step begins."""
    worlds: object = None
    """The run's worlds (`worlds.running.Worlds`). Only the environment of a world uses them."""
    on_record: Callable[[Record], None] = lambda record: None
    """Called with each record of an attempt once it is durable."""
    on_cut: Callable[[Cut], None] = lambda cut: None
    """Called when a log whose end was damaged has been cut to its last good record."""
