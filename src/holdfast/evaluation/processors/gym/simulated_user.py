"""SimulatedUser: the user of a gym's row, played by a model (`user_simulation` in its data).

It has a conversation of its own beside the policy's: what one says is what the other is told. Both
are durable; only the policy's is trained. Who plays it is never guessed: where a row names another
model than the evaluated one, that model speaks, if the run's own engine serves it and takes
messages; else the row is refused until somebody says who speaks.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from holdfast.evaluation.running.providers import names_of
from holdfast.policy.policy import Completion, Policy, Request
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import BadRequest, UsageError
from holdfast.records.message import system
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.dialogue import BEGIN, STOP
from holdfast.rollout.processors.row_clients import Client, ClientCache, RowClient
from holdfast.rollout.processors.training import read_params
from holdfast.rollout.replay.speaker import Voice

SAME = "same"
"""As a `user_policy`: the evaluated model speaks for the user, too."""
ENDINGS = (STOP, "###TRANSFER###", "###OUT-OF-SCOPE###")
"""What a simulated user says at the end, in tau-bench's words."""
_RULES = f"""You are a customer who talks to an agent. Say one thing at a time, as a customer \
would, and nothing that your instructions do not tell you. When what you came for is done, or you \
are handed on to somebody else, say {STOP} and nothing more.

Your instructions:
"""


class SimulatedSpeaker(Struct, frozen=True):
    """Who plays the users of all rows; without a policy, only rows of the evaluated model."""

    policy: "Policy | str | None" = None
    renderer: Renderer | None = None
    clients: ClientCache = field(default_factory=ClientCache)
    """Of models that rows name; whoever has the speaker closes them."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, str) and self.policy != SAME:
            raise UsageError(
                f"user_policy={self.policy!r}: give a policy, or {SAME!r} to let the evaluated "
                "model speak for the user, too"
            )

    @property
    def identity(self) -> str:
        if self.policy is None:
            return ""
        return f" user {self.policy if isinstance(self.policy, str) else self.policy.model}"

    def voice(self, t: Rollout, model: object) -> Voice:
        if self.policy is not None and not isinstance(self.policy, str):
            return Voice(self.policy, self.renderer or _renderer(self.policy), trained=False)
        own = t.voice.policy.model
        if self.policy == SAME or model is None or own in names_of(str(model)):
            return Voice(t.voice.policy, t.voice.renderer, trained=False)
        refusal = UsageError(
            f"row {t.task.id!r} wants a user that {model!r} plays, and {own!r} is evaluated: "
            "give MCPGymRolloutProcessor user_policy=…, a policy for the user, or "
            f"user_policy={SAME!r} to let {own!r} speak for the user, too"
        )
        if not isinstance(t.voice.renderer, MessagesOnly):
            raise refusal
        return Voice(self._named(t.voice.policy, str(model), refusal), t.voice.renderer, False)

    def _named(self, own: Policy, model: str, refusal: UsageError) -> Policy:
        """That model, where the run's engine is. Nothing is asked before it is to speak, so that
        what is recorded replays although the engine is gone."""
        try:
            client = self.clients.client_for(own, None, model)
        except ValueError as error:
            raise refusal from error
        assert client is not None, "it is another model"
        return _Named(client, refusal)


class _Named(RowClient):
    """A model that a row names: that the engine does not serve it is told with the way out."""

    def __init__(self, client: Client, refusal: UsageError):
        super().__init__(client)
        self._refusal = refusal

    async def sample(self, request: Request) -> Completion:
        try:
            return await super().sample(request)
        except BadRequest as error:
            raise self._refusal from error


class SimulatedUser:
    """The other side of one trajectory."""

    def __init__(self, t: Rollout, told: Mapping[str, Any], speaker: SimulatedSpeaker):
        self._voice = speaker.voice(t, told.get("llm"))
        self._params = _params(t, told.get("llm_args") or {"temperature": 0.0})
        self._side = t.beside()
        self._side.add(system(_RULES + str(told.get("system_prompt") or "")))

    async def begins(self) -> str:
        """The first thing that the user says."""
        return await self._says(BEGIN)

    async def answers(self, said: str) -> str | None:
        """What the user says to that; None where it ends the conversation."""
        text = await self._says(said)
        return None if any(one in text for one in ENDINGS) else text

    async def _says(self, told: str) -> str:
        self._side.add(told)
        reply = await self._side.generate(voice=self._voice, **self._params)
        return reply.text


def simulation_of(told: Mapping[str, object]) -> Mapping[str, Any] | None:
    """What a row's data says about its user; None where there is none to play."""
    found = told.get("user_simulation")
    return found if isinstance(found, Mapping) and found.get("enabled") else None


def _params(t: Rollout, given: Mapping[str, object]) -> dict[str, Any]:
    try:
        read = read_params(dict(given))
    except (TypeError, ValueError) as error:
        raise UsageError(f"row {t.task.id!r}: user_simulation.llm_args: {error}") from error
    names = ("max_tokens", "temperature", "top_p", "stop")
    return {name: value for name in names if (value := getattr(read, name)) is not None}


def _renderer(policy: Policy) -> Renderer:
    from holdfast.policy.rendering.select import renderer_of

    return renderer_of(policy)
