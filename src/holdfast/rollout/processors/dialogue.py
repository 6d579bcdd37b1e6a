"""DialogueRolloutProcessor: an assistant and a simulated user, each with its own policy.

The two have separate conversations, each in the tokens of its own model. Each side's reply becomes
a message to the other side. Both sides are durable, but only the assistant is trained.
"""

from collections.abc import Callable, Sequence

from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role, system, user
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.agent import first_messages, task_function
from holdfast.rollout.processors.processor import Returned, RolloutProcessor, code_of
from holdfast.rollout.replay.budget import Limits
from holdfast.rollout.replay.speaker import Speaker
from holdfast.rollout.tools.tool import Function, Tool, tools_of

DEFAULT_TURNS = 20
STOP = "###STOP###"
"""The text with which a simulated user ends a dialogue by default."""
BEGIN = "Begin."
"""The first message to the simulated user. Chat templates require that the simulated user, who
speaks as the assistant of its own conversation, gets a message first."""


class DialogueRolloutProcessor(RolloutProcessor):
    """Lets assistant and user take turns until the user or a limit ends the dialogue.

    `user_prompt` makes the simulated user's system prompt from the task. The user speaks through
    `user_policy` and `user_renderer`, which the caller owns. Without them, the user speaks through
    the run's own policy, untrained. If the task ends with a user's message, the dialogue begins
    with that message. Otherwise the user is asked first.
    """

    @checks_arguments(own="user_prompt tools stop")
    def __init__(
        self,
        user_prompt: Callable[[Task], str],
        *,
        user_policy: Policy | None = None,
        user_renderer: Renderer | None = None,
        tools: "Sequence[Tool | Function]" = (),
        system_prompt: str | None = None,
        stop: str = STOP,
        user_max_tokens: int | None = None,
        max_turns: int | None = DEFAULT_TURNS,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
    ):
        self.user_prompt = task_function(user_prompt, what="user_prompt", makes="the user's prompt")
        self.user_policy = user_policy
        self.user_renderer = user_renderer
        self.tools = tools_of(tools, where="tools")
        self.system_prompt = system_prompt
        self.stop = _check_stop(stop)
        self.user_max_tokens = user_max_tokens
        self.limits = Limits(max_turns, max_tokens, max_seconds)

    @property
    def identity(self) -> str:
        code = code_of(*self.tools, self.user_prompt)
        model = self.user_policy.model if self.user_policy else ""
        return f"{self.system_prompt!r} {self.stop!r} {self.limits!r} {code} {model}"

    async def rollout(self, t: Rollout) -> Returned:
        limits = self.limits
        t.limit(turns=limits.turns, tokens=limits.tokens, seconds=limits.seconds)
        customer = self._customer(t)
        t.add(*first_messages(t.task, self.system_prompt))
        # The conversation so far, from the user's side. BEGIN comes first, because chat templates
        # want the other side to begin.
        before = [user(BEGIN), *_mirror(t.task.messages)]
        if before[-1].role is Role.ASSISTANT:
            customer.add(*before)
        else:
            *before, last = before
            customer.add(*before)
            if not await self._user_turn(t, customer, last.text):
                return None
        while True:
            reply = await self._assistant_turn(t)
            if not await self._user_turn(t, customer, reply):
                return None

    def _customer(self, t: Rollout) -> Rollout:
        customer = t.beside()
        customer.add(system(self.user_prompt(t.task)))
        return customer

    async def _assistant_turn(self, t: Rollout) -> str:
        """Returns the assistant's next reply without tool calls. Runs the tools that earlier
        replies call."""
        while True:
            reply = await t.generate(tools=self.tools)
            if not reply.tool_calls:
                return reply.text
            await t.tools(reply.tool_calls, *self.tools)

    async def _user_turn(self, t: Rollout, customer: Rollout, text: str) -> bool:
        """Lets the user answer. Returns False if the user ends the dialogue."""
        customer.add(text)
        speaker = Speaker(
            self.user_policy or t.speaker.policy,
            self.user_renderer or t.speaker.renderer,
            trained=False,
        )
        answer = await customer.generate(speaker=speaker, max_tokens=self.user_max_tokens)
        if self.stop in answer.text:
            return False
        t.add(answer.text)
        return True


def _check_stop(stop: object) -> str:
    # Every text contains the empty text, so an empty stop word would end each dialogue at once.
    if not isinstance(stop, str) or not stop:
        raise UsageError(f"stop={stop!r:.200}: give the words with which the user ends a dialogue")
    return stop


def _mirror(messages: Sequence[Message]) -> list[Message]:
    """Returns the conversation as the other side sees it: assistant and user exchange their
    roles."""
    other = {Role.USER: Role.ASSISTANT, Role.ASSISTANT: Role.USER}
    return [
        Message(other[message.role], message.text)
        for message in messages
        if message.role in other and message.text
    ]
