"""GymEnvironment: any gymnasium environment that can be put into words.

The reply of the policy is read as an action, the observation is shown as text. The same seed and
the same actions give the same episode wherever the environment itself keeps to its seed, and so it
comes back by replay. Nothing is made before `reset`, and what was made is always closed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.environments import replies
from holdfast.environments.gym import ansi
from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import (
    DEFAULT_TIMEOUT,
    Environment,
    Observation,
    Recovery,
)
from holdfast.rollout.tools.tool import Function, Tool

try:
    import gymnasium
    import numpy as np
    from gymnasium.spaces import Discrete
    from gymnasium.wrappers import TimeLimit
except ImportError as missing:
    raise UsageError(
        f"GymEnvironment needs gymnasium ({missing}); install it with: pip install '.[gym]' "
        "(in the clone)"
    ) from missing

from holdfast.environments.gym.spaces import Read, described, is_action, reading
from holdfast.environments.gym.values import builtin, recordable

Env: TypeAlias = gymnasium.Env[Any, Any]
Make = Callable[..., Env]
Actions = Mapping[str, object] | Read
Render = Callable[[Env, object, Mapping[str, object]], str]

_renders_text: dict[str, bool] = {}
"""Whether the environment of an id has an `ansi` rendering; known once one was made."""


class _Kept(msgspec.Struct, frozen=True):
    state: bytes
    steps: int
    over: bool


class GymEnvironment(Environment):
    """`environment` is an id or a function that makes a `gymnasium.Env`; it is given `kwargs`.

    - `actions`: the words of the actions (`{"left": 0, …}`), or a function from the reply to the
      action that raises `ValueError` or `ToolSaysNo` where there is none. By default an action is
      written as its number or numbers.
    - `render`: what the policy is shown of (environment, observation, info). By default the
      environment's own `ansi` rendering, or the observation in words; `names` are then those of
      its parts.
    - `instructions`: how to act; shown once, below the first observation. By default the list of
      actions.
    - `as_tool`: the name of a tool by which the policy acts, instead of by what it says.
    - `snapshot` and `restore` (state to bytes and back, random generator included) let it come
      back without doing everything again.
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
        self._words = replies.ReplyTexts(actions) if isinstance(actions, Mapping) else None
        self._render = render
        self._names = tuple(names)
        self._instructions = instructions
        self._as_tool = as_tool
        self._keep, self._put_back = snapshot, restore
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
        self._over = False

    @property
    def name(self) -> str:
        made_by = self._environment
        return made_by if isinstance(made_by, str) else _name_of(made_by)

    @property
    def identity(self) -> str:
        words = self._words.words if self._words else ()
        shown = (self._render, self._names, self._instructions, self._as_tool)
        every = (self.name, self._kwargs, words, self._actions, shown)
        return msgspec.json.encode(builtin(every, _name_of), order="sorted").decode()

    @property
    def tools(self) -> Sequence[Tool | Function]:
        return (self._tool(),) if self._as_tool else ()

    def reset(self, *, seed: int) -> Observation:
        env, possible = self._begin()
        env.action_space.seed(seed)
        observation, info = env.reset(seed=seed)
        self._steps, self._over = 0, False
        text = self._shown(env, observation, info)
        instructions = self._how(possible) if self._instructions is None else self._instructions
        return Observation(f"{text}\n\n{instructions}".strip(), info=recordable(info))

    def step(self, action: str) -> Observation:
        return self._act(lambda: self._understood(action))

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def snapshot(self) -> bytes:
        if self._keep is None:
            raise UsageError(f"{self.name} was given no `snapshot`")
        kept = _Kept(self._keep(self._opened()), self._steps, self._over)
        return msgspec.msgpack.encode(kept)

    def restore(self, state: bytes) -> None:
        if self._put_back is None:
            raise UsageError(f"{self.name} was given no `restore`")
        kept = msgspec.msgpack.decode(state, type=_Kept)
        env, _ = self._begin()
        env.reset()  # The wrappers insist on it; what it begins is replaced at once.
        self._put_back(env, kept.state)
        self._steps, self._over = kept.steps, kept.over
        for layer in _layers(env):
            if isinstance(layer, TimeLimit):
                # It has no other way to be told; without it, the limit would begin anew.
                vars(layer)["_elapsed_steps"] = kept.steps

    def _begin(self) -> tuple[Env, str]:
        """A fresh environment, and what the possible actions are."""
        self.close()
        self._env = env = self._made()
        if self._words is not None:
            self._check_words(env)
            return env, self._words.possible
        if callable(self._actions):
            return env, ""
        if self._as_tool and not isinstance(env.action_space, Discrete):
            raise UsageError(
                f"{self.name}: a tool takes one word or number, and an action is one of "
                f"{env.action_space}; give `actions=`"
            )
        self._read, possible = reading(env.action_space)
        return env, possible

    def _check_words(self, env: Env) -> None:
        assert isinstance(self._actions, Mapping), "it has words"
        for word, action in self._actions.items():
            if not is_action(env.action_space, action):
                raise UsageError(
                    f"{self.name}: `actions` says that {word!r} is {action!r:.80}, which is no "
                    f"action of {env.action_space}"
                )

    def _made(self) -> Env:
        try:
            return self._make()
        except TypeError as error:
            # A mistyped keyword, as a rule: it is the same at every try.
            given = ", ".join(self._kwargs) or "no keywords"
            raise UsageError(f"{self.name} cannot be made (given {given}): {error}") from error

    def _make(self) -> Env:
        if not isinstance(self._environment, str):
            return self._environment(**self._kwargs)
        name = self._environment
        if "render_mode" in self._kwargs or _renders_text.get(name) is False:
            return self._registered(name)
        if name not in _renders_text:
            env = self._registered(name)
            _renders_text[name] = "ansi" in (env.metadata.get("render_modes") or ())
            if not _renders_text[name]:
                return env
            env.close()
        return self._registered(name, render_mode="ansi")

    def _registered(self, name: str, **options: str) -> Env:
        try:
            return gymnasium.make(name, **options, **self._kwargs)
        except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
            raise UsageError(f"gymnasium knows no {name!r}: {error}") from error

    def _opened(self) -> Env:
        if self._env is None:
            raise UsageError(f"{self.name} was not reset")
        return self._env

    def _act(self, read: Callable[[], object]) -> Observation:
        env = self._opened()
        if self._over:
            raise ToolSaysNo("Nothing happened: the episode is over.")
        observation, reward, terminated, truncated, info = env.step(read())
        self._steps += 1
        self._over = bool(terminated or truncated)
        return Observation(
            self._shown(env, observation, info),
            reward=float(np.asarray(reward).item()),
            done=bool(terminated),
            truncated=bool(truncated),
            info=recordable(info),
        )

    def _understood(self, reply: str) -> object:
        if self._words is not None and isinstance(self._actions, Mapping):
            return self._actions[self._words.read(reply)]
        read = self._actions if callable(self._actions) else self._read
        assert read is not None, "it was reset"
        return replies.understood(read, reply)

    def _shown(self, env: Env, observation: object, info: Mapping[str, object]) -> str:
        if self._render is not None:
            return self._render(env, observation, info)
        if env.render_mode == "ansi":
            return ansi.plain(str(env.render())).strip("\n")
        return described(env.observation_space, observation, self._names)

    def _how(self, possible: str) -> str:
        if self._as_tool:
            return f"Act by calling {self._as_tool}."
        if self._words is not None:
            return f"Reply with one of these actions: {possible}."
        return f"Reply with your action: {possible}." if possible else ""

    def _tool(self) -> Tool:
        def act(action: object) -> Observation:
            seen = self._act(lambda: self._called(action))
            return msgspec.structs.replace(seen, text=_told(seen))

        hint: object = str if callable(self._actions) else int
        if self._words is not None:
            hint = Literal[self._words.words]
        act.__annotations__ = {"action": hint, "return": Observation}
        act.__doc__ = f"Does one action in {self.name}, and shows what came of it."
        return Tool(act, name=self._as_tool, timeout=self.timeout)

    def _called(self, action: object) -> object:
        if isinstance(self._actions, Mapping):
            return self._actions[str(action)]
        if callable(self._actions):
            return replies.understood(self._actions, str(action))
        space = self._opened().action_space
        if not space.contains(action):
            raise ToolSaysNo(f"Nothing happened: {action} is no action of {space}.")
        return action


def _check(environment: object, actions: object) -> None:
    if isinstance(environment, gymnasium.Env):
        raise UsageError(
            "GymEnvironment makes its environments itself: give an id or a function, e.g. "
            "lambda: gymnasium.make(…), not an environment"
        )
    if not (isinstance(environment, str) or callable(environment)):
        raise UsageError(f"give GymEnvironment an id or a function, not {environment!r:.80}")
    if not (actions is None or isinstance(actions, Mapping) or callable(actions)):
        raise UsageError(
            "`actions` are words and their actions, e.g. {'left': 0, 'right': 1}, or a function "
            f"from the reply to the action, not {actions!r:.80}"
        )


def _told(seen: Observation) -> str:
    """What a tool says, from which a policy learns what it else would from the loop's end."""
    words = [seen.text]
    if seen.reward:
        words.append(f"Reward: {seen.reward:g}.")
    if seen.over:
        words.append("The episode is over.")
    return "\n".join(words)


def _layers(env: Env) -> Iterator[Env]:
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


def _name_of(value: object) -> str:
    """The same in every process, as the default `repr` with its address would not be."""
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)
