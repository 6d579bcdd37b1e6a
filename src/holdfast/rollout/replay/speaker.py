"""Speaker: the policy and the renderer of a turn."""

from msgspec import Struct, structs

from holdfast.policy.policy import Policy
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.sampling import Sampling


class Speaker(Struct, frozen=True):
    """A policy and the renderer of its model. The caller owns both."""

    policy: Policy
    renderer: Renderer
    trained: bool = True
    """Whether the sampled text is trained. False if it belongs to the environment, for example a
    simulated user's text."""

    def at_sampling(self, sampling: Sampling) -> "Speaker":
        """Returns this speaker with a renderer for the given sampling. Raises `Unsupported` if the
        renderer cannot express the sampling."""
        if sampling.reasoning_effort is None and not sampling.chat_template_kwargs:
            return self
        return structs.replace(self, renderer=renderer_at(self.renderer, sampling))
