"""Voice: who speaks in a turn: a policy, and the renderer that turns messages into its tokens."""

from msgspec import Struct

from holdfast.policy.policy import Policy
from holdfast.policy.renderer import Renderer


class Voice(Struct, frozen=True):
    policy: Policy
    renderer: Renderer
    trained: bool = True
    """False: what it says is part of the world, such as a simulated user."""
