"""MCPGymRolloutProcessor runs episodes of an MCP gym, whose server it starts and stops."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.evaluation.eval_protocol.gym.environment import (
    TIMEOUT_SECONDS,
    Gym,
    McpGymEnvironment,
)
from holdfast.evaluation.eval_protocol.gym.server import GymServer, server_options
from holdfast.evaluation.eval_protocol.gym.simulated_user import (
    SimulatedSpeaker,
    SimulatedUser,
    ends_conversation,
    simulation_of,
)
from holdfast.evaluation.eval_protocol.row_processor import RolloutProcessor
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import Truncated, UsageError
from holdfast.records.message import Message, Role, user
from holdfast.records.task import Task
from holdfast.records.trajectory import Truncation
from holdfast.rollout.context import Rollout
from holdfast.rollout.episodes.episode import Episode
from holdfast.rollout.processors.processor import Returned

DEFAULT_STEPS = 30


class MCPGymRolloutProcessor(RolloutProcessor):
    """Generates turns until the episode is over or the model calls no more tools. The reward is the
    total reward of the episode.

    One server serves all rows. `input_metadata.dataset_info` of a row may hold
    `environment_context` for the gym (with `seed`), `user_prompt_template` (the first prompt, with
    `{observation}`), and `user_simulation`, a user played by a model. With such a user, the policy
    answers the user until the user or the episode ends, and `steps` limits the policy's answers,
    however many tools it calls. Without such a user, `steps` limits the policy's tool calls.
    """

    def __init__(
        self,
        server_script_path: str | Path | None = None,
        *,
        steps: int = DEFAULT_STEPS,
        timeout: float = TIMEOUT_SECONDS,
        user_policy: "Policy | str | None" = None,
        user_renderer: Renderer | None = None,
        **server: object,
    ):
        """`timeout` is the number of seconds for each request to the gym. `server` takes port,
        domain and python. `user_policy` plays the simulated users: a policy, which the caller owns,
        or "same". Without it, the evaluated model plays the user, if the row names that model or no
        model."""
        self.server_script_path = server_script_path
        self.steps = steps
        self.timeout = timeout
        self._speaker = SimulatedSpeaker(user_policy, user_renderer)
        self._options = dict(server)
        self._gym: Gym | None = None
        server_options(self._options)

    def configured(
        self,
        *,
        server_script_path: str | Path | None = None,
        steps: int | None = None,
        mcp_config_path: str | Path | None = None,
        rollout_processor_kwargs: Mapping[str, object] | None = None,
    ) -> "MCPGymRolloutProcessor":
        """Returns a copy with the decorator's arguments."""
        if mcp_config_path:
            raise UsageError(
                "MCPGymRolloutProcessor takes a server_script_path, no mcp_config_path"
            )
        arguments: dict[str, Any] = {
            "user_policy": self._speaker.policy,
            "user_renderer": self._speaker.renderer,
            **self._options,
            **(rollout_processor_kwargs or {}),
        }
        return type(self)(
            server_script_path or self.server_script_path,
            steps=self.steps if steps is None else steps,
            timeout=self.timeout,
            **arguments,
        )

    @property
    def identity(self) -> str:
        """Text that identifies the gym. If it changes, a new run begins. The script's name and
        content are part of it, but not the script's folder."""
        script = Path(self.server_script_path or "")
        body = script.read_bytes() if script.is_file() else b""
        digest = hashlib.sha256(body).hexdigest()[:12]
        return f"{self.steps} {script.name} {digest}{self._speaker.identity}"

    async def setup(self) -> None:
        if self.server_script_path is None:
            raise UsageError("MCPGymRolloutProcessor wants server_script_path=…, a gym's server")
        options: dict[str, Any] = server_options(self._options)
        self._gym = Gym(GymServer(self.server_script_path, **options), timeout=self.timeout)

    async def acleanup(self) -> None:
        await self._speaker.clients.aclose()
        gym, self._gym = self._gym, None
        if gym is not None:
            await gym.server.aclose()

    async def rollout(self, t: Rollout) -> Returned:
        assert self._gym is not None, "it was set up"
        info = _dataset_info(t.task)
        context = info.get("environment_context")
        episode = await t.env(
            McpGymEnvironment(
                self._gym, row=t.task.id, context=context if isinstance(context, dict) else {}
            )
        )
        text = episode.observation.text
        simulated: SimulatedUser | None = None
        if (simulation := simulation_of(info)) is not None:
            simulated = SimulatedUser(t, simulation, self._speaker)
            text = await simulated.answer()
        prompt = user_prompt(t.task, info, text, is_state=simulated is None)
        t.add(*opening_messages(t.task, info, prompt))
        try:
            await _play(t, episode, simulated, steps=self.steps)
        except Truncated as limit:
            raise Truncated(limit.reason, returned=episode.total_reward) from limit
        return episode.total_reward


async def _play(
    t: Rollout, episode: Episode, simulated: SimulatedUser | None, *, steps: int
) -> None:
    while not episode.over:
        if not steps:
            t.truncate(Truncation.MAX_TURNS)
        reply = await t.generate(tools=episode.tools)
        if reply.tool_calls:
            calls = reply.tool_calls[: None if simulated else steps]
            await t.tools(calls, *episode.tools)
            steps -= 0 if simulated else len(calls)
        elif simulated is None:
            return
        elif steps := steps - 1:
            text = await simulated.answer(reply.text)
            t.add(user_prompt(t.task, _dataset_info(t.task), text))
            if ends_conversation(text):
                return
    if episode.observation.truncated:
        t.truncate(Truncation.ENVIRONMENT_LIMIT)


def opening_messages(task: Task, info: Mapping[str, object], prompt: str) -> list[Message]:
    """Returns the row's messages before the first prompt, and the prompt. With a template, only
    system messages stay."""
    before = (
        message for message in task.messages if message.role is Role.SYSTEM or not _template(info)
    )
    return [*before, user(prompt)]


def user_prompt(
    task: Task, info: Mapping[str, object], observation: str, *, is_state: bool = False
) -> str:
    """Returns the message to the policy, written in the row's template. `observation` is the gym's
    state (`is_state`), or the words of the simulated user."""
    template = _template(info)
    if not template:
        return observation
    context = info.get("environment_context")
    values = context if isinstance(context, Mapping) else {}
    state = _observation_of(observation) if is_state else observation
    try:
        return template.format(**{**values, "observation": state})
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError(f"row {task.id!r}: user_prompt_template: {error!r}") from error


def _template(info: Mapping[str, object]) -> str:
    template = info.get("user_prompt_template")
    return template if isinstance(template, str) else ""


def _observation_of(observation: str) -> object:
    """Returns the `observation` field of a state. Returns the whole state if it has no such
    field."""
    state = msgspec.json.decode(observation)
    return state.get("observation", state) if isinstance(state, dict) else state


def _dataset_info(task: Task) -> Mapping[str, object]:
    metadata = task.metadata.get("input_metadata")
    for holder in (metadata, task.metadata):
        dataset_info = holder.get("dataset_info") if isinstance(holder, Mapping) else None
        if isinstance(dataset_info, Mapping):
            return dataset_info
    return {}
