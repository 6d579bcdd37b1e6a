"""Dialogues whose simulated user speaks another way than the policy, or does not answer."""

import pytest
from msgspec import structs

from holdfast.engine.export.export import What
from holdfast.policy.policy import DEADLINE
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.records.errors import ContextOverflow
from holdfast.records.group import GroupPolicy
from holdfast.records.message import Message, Role, assistant, system, user
from holdfast.records.task import Task, tasks_digest
from holdfast.rollout.processors.dialogue import STOP, DialogueRolloutProcessor
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle, completion, text_of


class ChatUser(Oracle):
    """A user behind a chat API: messages, no token ids."""

    model = "chat"

    async def sample(self, request):
        self.requests.append(request)
        text = "and then?" if len(self.requests) < 3 else STOP
        return structs.replace(
            completion(text),
            ids=b"",
            logprobs=b"",
            versions=(),
            message=Message(Role.ASSISTANT, text),
            model="chat",
        )


@pytest.mark.parametrize("what", [What.SAMPLES, What.ROWS])
def test_a_dialogue_with_a_user_behind_a_chat_api_is_exported_for_training(what):
    local = LocalRun(policy=Oracle(lambda request: "well"))
    local.run(
        DialogueRolloutProcessor(
            lambda task: "ask on", user_policy=ChatUser(), user_renderer=MessagesOnly()
        )
    )
    (row,) = local.rows(what)
    if what is What.SAMPLES:
        trained = [
            token for token, mask in zip(row["token_ids"], row["loss_mask"], strict=True) if mask
        ]
        assert text_of(trained) == "well" * 3
    else:
        assert [message["content"] for message in row["messages"]][-3:] == [
            "well",
            "and then?",
            "well",
        ]
        assert row["execution_metadata"]["usage"]["completion_tokens"] == 3 * len(b"well.")


class Faulty(Oracle):
    """A user that meets a limit of its own engine the first `times` times it is asked."""

    model = "user"

    def __init__(self, fault: str, times: int):
        super().__init__(lambda request: STOP)
        self.fault, self.times = fault, times

    async def sample(self, request):
        result = await super().sample(request)
        if len(self.requests) > self.times:
            return result
        if self.fault == "overflow":
            raise ContextOverflow("too long")
        return structs.replace(result, finish_reason=DEADLINE)


@pytest.mark.parametrize("fault", ["overflow", "deadline"])
def test_a_users_own_limit_is_no_truncation_of_the_policy(fault):
    local = LocalRun(group=GroupPolicy(refill=0))
    local.run(
        DialogueRolloutProcessor(lambda task: "you", user_policy=Faulty(fault, 100)), max_retry=1
    )
    history = local.history()
    assert history.status.name == "FAILED"
    assert {failure.cause.value for failure in history.failures} == {"environment"}


@pytest.mark.parametrize("fault", ["overflow", "deadline"])
def test_a_user_that_met_its_limit_is_asked_again_in_the_next_attempt(fault):
    oracle = Faulty(fault, 2)
    local = LocalRun(group=GroupPolicy(refill=0))
    local.run(DialogueRolloutProcessor(lambda task: "you", user_policy=oracle))
    history = local.history()
    assert history.status.name == "COMPLETED"
    assert len(history.failures) == 2
    assert len(oracle.requests) == 3


def test_a_dialogue_that_begins_with_an_assistants_message_goes_on_with_the_user():
    oracle = Oracle(lambda request: STOP)
    local = LocalRun()
    message = (system("sys"), user("my order is 77"), assistant("which item?"))
    local.tasks = [Task(id="a", messages=message)]
    local.spec = structs.replace(local.spec, tasks=tasks_digest(local.tasks))
    local.run(DialogueRolloutProcessor(lambda task: "you are a customer", user_policy=oracle))
    assert local.history().status.name == "COMPLETED"
    assert not local.policy.requests
    shown = text_of(oracle.requests[0].prompt)
    assert "sys" not in shown.replace("system", "")
    assert shown.index("assistant\nmy order is 77") < shown.index("user\nwhich item?")
