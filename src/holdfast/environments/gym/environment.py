"""GymEnvironment: any gymnasium environment whose observations have a text form.

The policy's reply is read as an action, and the observation becomes text. By default, the
environment recovers by replay, because most environments give the same episode for the same seed
and actions. No gymnasium environment is created before `reset` or `restore`, and every created
environment is closed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.environments import replies
from holdfast.extras import needed_by
from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import (
    DEFAULT_TIMEOUT,
    Environment,
    Observation,
    Recovery,
)
from holdfast.rollout.tools.tool import Function, Tool

with needed_by("GymEnvironment", extra="gym"):
    import gymnasium
    import numpy as np
    from gymnasium.spaces import Discrete
    from gymnasium.wrappers import TimeLimit

from holdfast.environments.gym.spaces import (
    Read,
    action_reader,
    format_observation,
    is_action,
    recordable,
    to_builtins,
    without_ansi,
)

Env: TypeAlias = gymnasium.Env[Any, Any]
Make = Callable[..., Env]
Actions = Mapping[str, object] | Read
Render = Callable[[Env, object, Mapping[str, object]], str]

_renders_text: dict[str, bool] = {}
"""Maps the id of an environment to whether it can be rendered as text (`ansi`). An entry is added
when the environment is first created."""


class _State(msgspec.Struct, frozen=True):
    """A snapshot of an episode."""

    state: bytes
    steps: int
    over: bool


class GymEnvironment(Environment):
    """An environment from gymnasium.

    `environment` is an id, or a function that creates a `gymnasium.Env` from `kwargs`.

    - `actions`: the names of the actions (`{"left": 0, …}`), or a function from the reply to the
      action that raises `ValueError` or `ToolSaysNo` if there is none. By default the policy writes
      the number or numbers of an action.
    - `render`: a function from (environment, observation, info) to the text for the policy. By
      default the environment's own `ansi` rendering, or else the formatted observation.
    - `names`: names for the parts of a formatted observation.
    - `instructions`: how to act; added once, below the first observation. By default the list of
      actions.
    - `as_tool`: the name of a tool with which the policy acts, instead of by its replies.
    - `snapshot` and `restore` (state to bytes and back, with the random generator) allow recovery
      without repeating all actions.
    """

    def __init__(
        self,
        environment: str | Make,
        *,
        actions: Actions | None = None,
        render: Render | None = None,
        names: Sequence[str] = (),
        instructions: str | None = None,
        as_tool: str = "",
        snapshot: Callable[[Env], bytes] | None = None,
        restore: Callable[[Env, bytes], None] | None = None,
        recovery: Recovery | str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        inline: bool = False,
        **kwargs: object,
    ):
        _check(environment, actions)
        self._environment = environment
        self._kwargs: dict[str, Any] = kwargs
        self._actions = actions
        self._action_names = replies.ActionNames(actions) if isinstance(actions, Mapping) else None
        self._render = render
        self._names = tuple(names)
        self._instructions = instructions
        self._as_tool = as_tool
        self._snapshot, self._restore = snapshot, restore
        if (snapshot is None) != (restore is None):
            raise UsageError("`snapshot` and `restore` belong together: give both, or neither")
        self.recovery = recovery or (Recovery.SNAPSHOT if snapshot else Recovery.REPLAY)
        if self.recovery == Recovery.SNAPSHOT and snapshot is None:
            raise UsageError(
                "gymnasium has no snapshots of its own: give `snapshot` and `restore`, or choose "
                "another recovery level"
            )
        self.timeout = timeout
        self.inline = inline
        self._env: Env | None = None
        self._read: Read | None = None
        self._steps = 0
        self._is_over = False

    @property
    def name(self) -> str:
        source = self._environment
        return source if isinstance(source, str) else replies.function_name(source)

    @property
    def identity(self) -> str:
        names = self._action_names.names if self._action_names else ()
        text = (self._render, self._names, self._instructions, self._as_tool)
        settings = (self.name, self._kwargs, names, self._actions, text)
        plain = to_builtins(settings, replies.function_name)
        return msgspec.json.encode(plain, order="sorted").decode()

    @property
    def tools(self) -> Sequence[Tool | Function]:
        return (self._tool(),) if self._as_tool else ()

    def reset(self, *, seed: int) -> Observation:
        env, possible = self._open()
        env.action_space.seed(seed)
        observation, info = env.reset(seed=seed)
        self._steps, self._is_over = 0, False
        first = Observation(self._text(env, observation, info), info=recordable(info))
        instructions = self._instructions
        if instructions is None:
            instructions = self._default_instructions(possible)
        return replies.with_instructions(first, instructions)

    def step(self, action: str) -> Observation:
        return self._act(lambda: self._read_action(action))

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def snapshot(self) -> bytes:
        if self._snapshot is None:
            raise UsageError(f"{self.name} was given no `snapshot`")
        state = _State(self._snapshot(self._current()), self._steps, self._is_over)
        return msgspec.msgpack.encode(state)

    def restore(self, state: bytes) -> None:
        if self._restore is None:
            raise UsageError(f"{self.name} was given no `restore`")
        saved = msgspec.msgpack.decode(state, type=_State)
        env, _ = self._open()
        env.reset()  # The wrappers require a reset. The next one replaces this episode.
        self._restore(env, saved.state)
        self._steps, self._is_over = saved.steps, saved.over
        layer: object = env
        while isinstance(layer, gymnasium.Wrapper):
            if isinstance(layer, TimeLimit):
                # TimeLimit has no method for this. Without it, the limit would count from 0 again.
                vars(layer)["_elapsed_steps"] = saved.steps
            layer = layer.env

    def _open(self) -> tuple[Env, str]:
        """Creates a new environment. Returns it with a text that names its possible actions."""
        self.close()
        self._env = env = self._create()
        if self._action_names is not None:
            self._check_actions(env)
            return env, self._action_names.possible
        if callable(self._actions):
            return env, ""
        if self._as_tool and not isinstance(env.action_space, Discrete):
            raise UsageError(
                f"{self.name}: a tool takes one word or number, and an action is one of "
                f"{env.action_space}; give `actions=`"
            )
        self._read, possible = action_reader(env.action_space)
        return env, possible

    def _check_actions(self, env: Env) -> None:
        assert isinstance(self._actions, Mapping), "its actions have names"
        for name, action in self._actions.items():
            if not is_action(env.action_space, action):
                raise UsageError(
                    f"{self.name}: `actions` says that {name!r} is {action!r:.80}, which is not "
                    f"an action of {env.action_space}"
                )

    def _create(self) -> Env:
        source = self._environment
        try:
            return self._from_id(source) if isinstance(source, str) else source(**self._kwargs)
        except TypeError as error:
            # Usually a mistyped keyword, which no retry can fix.
            keywords = ", ".join(self._kwargs) or "no keywords"
            raise UsageError(f"{self.name} cannot be made (given {keywords}): {error}") from error

    def _from_id(self, name: str) -> Env:
        if "render_mode" in self._kwargs or _renders_text.get(name) is False:
            return self._make(name)
        if name not in _renders_text:
            env = self._make(name)
            _renders_text[name] = "ansi" in (env.metadata.get("render_modes") or ())
            if not _renders_text[name]:
                return env
            env.close()
        return self._make(name, render_mode="ansi")

    def _make(self, name: str, **options: str) -> Env:
        try:
            return gymnasium.make(name, **options, **self._kwargs)
        except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
            raise UsageError(f"gymnasium knows no {name!r}: {error}") from error

    def _current(self) -> Env:
        if self._env is None:
            raise UsageError(f"{self.name} was not reset")
        return self._env

    def _act(self, read: Callable[[], object]) -> Observation:
        env = self._current()
        if self._is_over:
            raise ToolSaysNo("Nothing happened: the episode is over.")
        observation, reward, terminated, truncated, info = env.step(read())
        self._steps += 1
        self._is_over = bool(terminated or truncated)
        return Observation(
            self._text(env, observation, info),
            reward=float(np.asarray(reward).item()),
            done=bool(terminated),
            truncated=bool(truncated),
            info=recordable(info),
        )

    def _read_action(self, reply: str) -> object:
        if self._action_names is not None and isinstance(self._actions, Mapping):
            return self._actions[self._action_names.read(reply)]
        read = self._actions if callable(self._actions) else self._read
        assert read is not None, "it was reset"
        return replies.apply_reader(read, reply)

    def _text(self, env: Env, observation: object, info: Mapping[str, object]) -> str:
        if self._render is not None:
            return self._render(env, observation, info)
        if env.render_mode == "ansi":
            return without_ansi(str(env.render())).strip("\n")
        return format_observation(env.observation_space, observation, self._names)

    def _default_instructions(self, possible: str) -> str:
        if self._as_tool:
            return f"Act by calling {self._as_tool}."
        if self._action_names is not None:
            return f"Reply with one of these actions: {possible}."
        return f"Reply with your action: {possible}." if possible else ""

    def _tool(self) -> Tool:
        def act(action: object) -> Observation:
            observation = self._act(lambda: self._action_of_call(action))
            return msgspec.structs.replace(observation, text=_tool_text(observation))

        hint: object = str if callable(self._actions) else int
        if self._action_names is not None:
            hint = Literal[self._action_names.names]
        act.__annotations__ = {"action": hint, "return": Observation}
        act.__doc__ = f"Does one action in {self.name}, and shows what came of it."
        return Tool(act, name=self._as_tool, timeout=self.timeout)

    def _action_of_call(self, action: object) -> object:
        if isinstance(self._actions, Mapping):
            return self._actions[str(action)]
        if callable(self._actions):
            return replies.apply_reader(self._actions, str(action))
        space = self._current().action_space
        if not space.contains(action):
            raise ToolSaysNo(f"Nothing happened: {action} is not an action of {space}.")
        return action


def _check(environment: object, actions: object) -> None:
    if isinstance(environment, gymnasium.Env):
        raise UsageError(
            "GymEnvironment creates its environments itself: give an id or a function, e.g. "
            "lambda: gymnasium.make(…), not an environment"
        )
    if not (isinstance(environment, str) or callable(environment)):
        raise UsageError(f"give GymEnvironment an id or a function, not {environment!r:.80}")
    if not (actions is None or isinstance(actions, Mapping) or callable(actions)):
        raise UsageError(
            "`actions` are names and their actions, e.g. {'left': 0, 'right': 1}, or a function "
            f"from the reply to the action, not {actions!r:.80}"
        )


def _tool_text(observation: Observation) -> str:
    """Returns the text of a tool's result: the observation, its reward, and whether the episode is
    over. A policy that acts through a tool would not see the reward and the end otherwise."""
    lines = [observation.text]
    if observation.reward:
        lines.append(f"Reward: {observation.reward:g}.")
    if observation.over:
        lines.append("The episode is over.")
    return "\n".join(lines)
