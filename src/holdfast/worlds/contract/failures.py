"""The errors of world providers.

`ProviderDown` is not a failure of a world: new trajectories wait until the provider is back. A
world that is gone (`WorldGone`) can be restored. A world that the provider refuses (`WorldRefused`)
cannot exist as requested, so a run stops before it samples.
"""

from holdfast.records.errors import Cause, EnvironmentBroken, HoldfastError, UsageError
from holdfast.rollout.episodes.environment import SnapshotGone

__all__ = ["ProviderDown", "ProviderFull", "SnapshotGone", "WorldGone", "WorldRefused"]


class WorldRefused(UsageError):
    """The provider cannot make the world: for example, the image or a right is missing, or a limit
    is not supported."""


class ProviderDown(HoldfastError):
    """The provider did not answer. Whether a call took effect is unknown."""

    cause = Cause.INFRASTRUCTURE
    retryable = True
    arose_here = False


class ProviderFull(ProviderDown):
    """The provider's disk is full."""


class WorldGone(EnvironmentBroken):
    """The world does not exist any more, or does not run."""
