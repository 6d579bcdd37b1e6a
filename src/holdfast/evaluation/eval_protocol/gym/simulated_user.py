"""SimulatedUser is the user of a gym's row, played by a model (`user_simulation` in the row's
data).

The user has its own conversation, in which the policy's replies are the input. Both conversations
are durable, but only the policy's conversation is used for training. A row may name another model
than the evaluated one. That model is used if the run's engine serves it and takes messages.
Otherwise the row fails with an error that names `user_policy`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from holdfast.policy.policy import Completion, Policy, Request
from holdfast.policy.providers import names_of
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import BadRequest, UsageError
from holdfast.records.message import system
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.dialogue import BEGIN, STOP
from holdfast.rollout.processors.row_clients import Client, ClientCache, RowClient
from holdfast.rollout.processors.training import read_params
from holdfast.rollout.replay.speaker import Speaker

SAME = "same"
"""The value of `user_policy` with which the evaluated model also plays the user."""
END_MARKERS = (STOP, "###TRANSFER###", "###OUT-OF-SCOPE###")
"""tau-bench's marks for the end of a conversation."""
_RULES = f"""You are a customer who talks to an agent. Say one thing at a time, as a customer \
would, and nothing that your instructions do not tell you. When what you came for is done, or you \
are handed on to somebody else, say {STOP} and nothing more.

Your instructions:
"""


class SimulatedSpeaker(Struct, frozen=True):
    """Plays the users of all rows. Without a policy, the evaluated model or the row's model plays
    them."""

    policy: "Policy | str | None" = None
    renderer: Renderer | None = None
    clients: ClientCache = field(default_factory=ClientCache)
    """Clients of the models that rows name. The owner of the speaker closes them."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, str) and self.policy != SAME:
            raise UsageError(
                f"user_policy={self.policy!r}: pass a policy, or {SAME!r} for the evaluated model"
            )

    @property
    def identity(self) -> str:
        if self.policy is None:
            return ""
        return f" user {self.policy if isinstance(self.policy, str) else self.policy.model}"

    def speaker_for(self, t: Rollout, model: object) -> Speaker:
        if self.policy is not None and not isinstance(self.policy, str):
            return Speaker(self.policy, self.renderer or _renderer(self.policy), trained=False)
        own = t.speaker.policy.model
        if self.policy == SAME or model is None or own in names_of(str(model)):
            return Speaker(t.speaker.policy, t.speaker.renderer, trained=False)
        error = UsageError(
            f"row {t.task.id!r} wants a user that {model!r} plays, and {own!r} is evaluated: "
            "pass user_policy=… to MCPGymRolloutProcessor, a policy for the user, or "
            f"user_policy={SAME!r} to let {own!r} also play the user"
        )
        if not isinstance(t.speaker.renderer, MessagesOnly):
            raise error
        return Speaker(
            self._client_of(t.speaker.policy, str(model), error), t.speaker.renderer, False
        )

    def _client_of(self, own: Policy, model: str, error_without_model: UsageError) -> Policy:
        """Returns a client for the model that a row names, at the run's engine. The client sends
        nothing before the first reply is sampled, so that a recorded trajectory replays without the
        engine."""
        try:
            client = self.clients.client_for(own, None, model)
        except ValueError as error:
            raise error_without_model from error
        assert client is not None, "it is another model"
        return _NamedModel(client, error_without_model)


class _NamedModel(RowClient):
    """A client for a model that a row names. If the engine does not serve the model, `sample`
    raises an error that says what to do."""

    def __init__(self, client: Client, error: UsageError):
        super().__init__(client)
        self._error = error

    async def sample(self, request: Request) -> Completion:
        try:
            return await super().sample(request)
        except BadRequest as error:
            raise self._error from error


class SimulatedUser:
    """The simulated user of one trajectory."""

    def __init__(self, t: Rollout, simulation: Mapping[str, Any], speaker: SimulatedSpeaker):
        self._speaker = speaker.speaker_for(t, simulation.get("llm"))
        self._params = _params(t, simulation.get("llm_args") or {"temperature": 0.0})
        self._conversation = t.beside()
        self._conversation.add(system(_RULES + str(simulation.get("system_prompt") or "")))

    async def answer(self, message: str = BEGIN) -> str:
        """Returns the user's first message, or the user's answer to a message of the policy.
        `ends_conversation` tells whether an answer ends the conversation."""
        self._conversation.add(message)
        reply = await self._conversation.generate(speaker=self._speaker, **self._params)
        return reply.text


def ends_conversation(answer: str) -> bool:
    return any(marker in answer for marker in END_MARKERS)


def simulation_of(info: Mapping[str, object]) -> Mapping[str, Any] | None:
    """Returns the settings of a row's simulated user. Returns None if the row has none, or if it is
    not enabled."""
    simulation = info.get("user_simulation")
    return simulation if isinstance(simulation, Mapping) and simulation.get("enabled") else None


def _params(t: Rollout, llm_args: Mapping[str, object]) -> dict[str, Any]:
    try:
        params = read_params(dict(llm_args))
    except (TypeError, ValueError) as error:
        raise UsageError(f"row {t.task.id!r}: user_simulation.llm_args: {error}") from error
    return {
        name: value
        for name, value in params.changes.items()
        if name not in ("json", "reasoning_effort")
    }


def _renderer(policy: Policy) -> Renderer:
    from holdfast.policy.rendering.select import renderer_of

    return renderer_of(policy)
