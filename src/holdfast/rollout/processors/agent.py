"""AgentRolloutProcessor and EnvironmentRolloutProcessor: the loops of most agents.

The first loop asks the model again until it calls no more tools. The second loop shows the model
the environment's answers, and does each reply of the model as an action, until the episode is over.
If a limit is reached, the trajectory ends as truncated, with the limit as the reason. Neither loop
has code for crashes.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.records.encoding.declared import checks_arguments, function_name
from holdfast.records.errors import Truncated, UsageError
from holdfast.records.message import Message, system
from holdfast.records.task import Task
from holdfast.records.trajectory import Truncation
from holdfast.rollout.context import Rollout
from holdfast.rollout.episodes.environment import Environment
from holdfast.rollout.episodes.episode import Episode
from holdfast.rollout.episodes.guarded import can_be_called
from holdfast.rollout.processors.processor import Returned, RolloutProcessor, code_of
from holdfast.rollout.replay.budget import Limits
from holdfast.rollout.replay.reply import Reply
from holdfast.rollout.tools.tool import Function, Tool, check_listed, tools_of

MakeEnvironment = Callable[[Task], Environment]
"""Creates a task's environment. It is called once for each attempt."""
Finish = Callable[[Rollout, Sequence[Episode]], Awaitable[Returned]]

FromTask = TypeVar("FromTask", bound=Callable[[Task], object])

DEFAULT_TURNS = 50


class AgentRolloutProcessor(RolloutProcessor):
    """Takes turns until the model calls no more tools, or the episode of an environment is over.

    The model gets `tools` and the tools of the environments (MCP servers, workspaces, games). Calls
    of the same turn run concurrently. `finish` is awaited after the last turn, also after a limit,
    while the environments are still open. Its result is the reward.
    """

    @checks_arguments(own="tools environments")
    def __init__(
        self,
        tools: "Sequence[Tool | Function]" = (),
        *,
        environments: Sequence[MakeEnvironment] = (),
        system_prompt: str | None = None,
        max_turns: int | None = DEFAULT_TURNS,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        finish: Finish | None = None,
    ):
        """`max_tokens` and `max_seconds` bound the whole trajectory, not one reply."""
        self.tools = tools_of(tools, where="tools")
        self.environments = check_environments(environments)
        self.system_prompt = system_prompt
        self.limits = Limits(max_turns, max_tokens, max_seconds)
        self.finish = finish

    @property
    def identity(self) -> str:
        """The prompt, the limits and the code as a text. If this text has changed, a run cannot be
        resumed."""
        code = code_of(*self.tools, *self.environments, self.finish)
        return f"{self.system_prompt!r} {self.limits!r} {code}"

    def limits_of(self, task: Task) -> Limits:
        """Returns the limits of a task's trajectories."""
        del task
        return self.limits

    async def rollout(self, t: Rollout) -> Returned:
        limits = self.limits_of(t.task)
        t.limit(turns=limits.turns, tokens=limits.tokens, seconds=limits.seconds)
        episodes = [await t.env(make(t.task)) for make in self.environments]
        tools = [*self.tools, *(tool for episode in episodes for tool in episode.tools)]
        t.add(*first_messages(t.task, self.system_prompt))
        t.add(*(episode.observation for episode in episodes if episode.observation.text))
        try:
            await self._work(t, episodes, tools)
        except Truncated as limit:
            # A truncated trajectory is judged, too.
            raise Truncated(limit.reason, returned=await self._judge(t, episodes)) from limit
        return await self._judge(t, episodes)

    async def _work(self, t: Rollout, episodes: Sequence[Episode], tools: Sequence[Tool]) -> None:
        while not any(episode.over for episode in episodes):
            reply = await t.generate(tools=tools)
            if not reply.tool_calls:
                return
            await t.tools(reply.tool_calls, *tools)
        if any(episode.observation.truncated for episode in episodes):
            t.truncate(Truncation.ENVIRONMENT_LIMIT)

    async def _judge(self, t: Rollout, episodes: Sequence[Episode]) -> Returned:
        return None if self.finish is None else await self.finish(t, episodes)


class EnvironmentRolloutProcessor(RolloutProcessor):
    """Shows the model an observation and does its reply as an action, until the episode is over.
    The reward is the sum of the rewards of all steps.

    `action` reads the action from a reply. By default, the action is the reply's text.
    """

    @checks_arguments(own="environment")
    def __init__(
        self,
        environment: MakeEnvironment,
        *,
        action: Callable[[Reply], str] | None = None,
        system_prompt: str | None = None,
        max_turns: int | None = DEFAULT_TURNS,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
    ):
        self.environment = task_function(environment, what="environment", makes="an Environment")
        self.action = action or (lambda reply: reply.text)
        self.system_prompt = system_prompt
        self.limits = Limits(max_turns, max_tokens, max_seconds)

    @property
    def identity(self) -> str:
        code = code_of(self.environment, self.action)
        return f"{self.system_prompt!r} {self.limits!r} {code}"

    async def rollout(self, t: Rollout) -> Returned:
        limits = self.limits
        t.limit(turns=limits.turns, tokens=limits.tokens, seconds=limits.seconds)
        episode = await t.env(self.environment(t.task))
        t.add(*first_messages(t.task, self.system_prompt), episode.observation)
        try:
            while not episode.over:
                reply = await t.generate()
                t.add(await episode.step(self.action(reply)))
            if episode.observation.truncated:
                t.truncate(Truncation.ENVIRONMENT_LIMIT)
        except Truncated as limit:
            raise Truncated(limit.reason, returned=episode.total_reward) from limit
        return episode.total_reward


def check_environments(functions: Sequence[MakeEnvironment]) -> tuple[MakeEnvironment, ...]:
    check_listed(functions, "environments wants a list of functions that make one from a task")
    return tuple(
        task_function(function, what="environments", makes="an Environment")
        for function in functions
    )


def task_function(function: FromTask, *, what: str, makes: str) -> FromTask:
    """Returns `function` if it can be called with a task. Raises `UsageError` otherwise. The
    results of the function are checked at each call."""
    wants = f"{what} wants a function that makes {makes} from a task"
    if isinstance(function, Environment):
        raise UsageError(f"{wants}, not an instance: lambda task: {type(function).__name__}(…)")
    if not callable(function):
        raise UsageError(f"{wants}: lambda task: …, not {function!r:.200}")
    if not can_be_called(function, None):
        name = function_name(function)
        raise UsageError(f"{wants}, but {name} does not take one argument: lambda task: …")
    return function


def first_messages(task: Task, system_prompt: str | None) -> list[Message]:
    """Returns the task's messages, after the system prompt if there is one."""
    messages = list(task.messages)
    return messages if system_prompt is None else [system(system_prompt), *messages]
