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
    """What to do if a rollout asks for another step than the recorded one."""

    FORK = "fork"
    """Keep the old steps as history and go live from the first step that differs."""
    FAIL = "fail"
    """Fail the trajectory."""


class RunContext(Struct, frozen=True):
    """The run, its journal, its speaker, and the callbacks of the engine."""

    spec: RunSpec
    journal: Journal
    speaker: Speaker
    """The run's own policy and renderer."""
    clock: Clock
    worker: str
    """The name of this process, for the records of its attempts."""
    on_divergence: OnDivergence = OnDivergence.FORK
    lost_versions: frozenset[str] = frozenset()
    """Versions of the weights that no engine has any more, in a run whose trajectories have one
    version each. A trajectory that began with such a version starts over."""
    partial_tokens: int = 0
    """The number of tokens after which an unfinished generation is made durable. With 0, a
    generation is durable only when it is whole."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the run is asked to stop. Then no new step begins."""
    worlds: object = None
    """The run's worlds (`worlds.running.Worlds`). Only the world's own environment uses them."""
    on_record: Callable[[Record], None] = lambda record: None
    """Called with each record of an attempt once it is durable."""
    on_cut: Callable[[Cut], None] = lambda cut: None
    """Called when a torn log was cut to its last good record."""
