"""Speaker: who speaks in a turn: a policy, and the renderer that turns messages into its tokens."""

from msgspec import Struct, structs

from holdfast.policy.policy import Policy
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.sampling import Sampling


class Speaker(Struct, frozen=True):
    """Who speaks in a turn: a policy, and the renderer of its model. The caller owns both."""

    policy: Policy
    renderer: Renderer
    trained: bool = True
    """False: its text is part of the environment, such as a simulated user's."""

    def at_sampling(self, sampling: Sampling) -> "Speaker":
        """The speaker with the renderer for this sampling. Raises `Unsupported` for what the
        renderer cannot do."""
        if sampling.reasoning_effort is None and not sampling.chat_template_kwargs:
            return self
        return structs.replace(self, renderer=renderer_at(self.renderer, sampling))
