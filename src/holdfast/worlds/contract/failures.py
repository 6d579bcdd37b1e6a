"""The errors of world providers.

A provider that is down is no failure of a world: admission waits until it is back. A world that is
gone can be restored. A world that is refused cannot exist as requested, so a run stops before it
samples.
"""

from holdfast.records.errors import Cause, EnvironmentBroken, HoldfastError, UsageError
from holdfast.rollout.episodes.environment import SnapshotGone

__all__ = ["ProviderDown", "ProviderFull", "SnapshotGone", "WorldGone", "WorldRefused"]


class WorldRefused(UsageError):
    """The provider cannot make such a world: no image, no rights, an unsupported limit."""


class ProviderDown(HoldfastError):
    """The provider did not answer. Whether a call took effect is unknown."""

    cause = Cause.INFRASTRUCTURE
    retryable = True
    arose_here = False


class ProviderFull(ProviderDown):
    """The provider's disk is full."""


class WorldGone(EnvironmentBroken):
    """The world does not exist any more, or does not run."""
