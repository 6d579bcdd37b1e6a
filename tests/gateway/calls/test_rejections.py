"""A call that is refused is not an outcome: neither hidden by its agent, nor by a kill."""

import aiohttp
import pytest

from holdfast.cli.commands.runs.show import _lines
from holdfast.engine.export.export import What
from holdfast.engine.report import as_text
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.gateway.wires.openai.chat import OpenAIChat
from holdfast.records.errors import ContextOverflow, UsageError
from holdfast.records.trajectory import TrajectoryKey
from holdfast.records.view import TrajectoryView
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle

FORBIDDEN = {"bad_words": ["x"]}
"""A parameter that no policy follows."""


def conversation(*texts: str) -> list[dict[str, object]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


class Client:
    """An agent's own: it raises nothing, whatever it is answered."""

    def __init__(self, binding, http):
        self._binding, self._http = binding, http

    async def post(self, path: str, body: object) -> tuple[int, dict]:
        headers = {"Authorization": f"Bearer {self._binding.key}"}
        url = f"{self._binding.url}{path}"
        async with self._http.post(url, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def chat(self, messages: list, **more: object) -> tuple[int, dict]:
        return await self.post("/v1/chat/completions", {"model": "m", "messages": messages, **more})


def swallowing(calls):
    """An agent that makes these calls and is done, whatever came of them."""

    async def agent(binding, task):
        async with aiohttp.ClientSession() as http:
            await calls(Client(binding, http))
        return 0.0

    return agent


def run(calls, policy=None, **options) -> LocalRun:
    local = LocalRun(policy=policy)
    local.run(BlackBoxRolloutProcessor(swallowing(calls), **options))
    return local


def shown(local: LocalRun) -> str:
    row = local.history()
    return "\n".join(
        _lines(TrajectoryView(TrajectoryKey("run", "a", 0), local.tasks[0], row), None, full=True)
    )


async def only_refused(client: Client) -> None:
    assert (await client.chat(conversation("hello"), **FORBIDDEN))[0] == 400


async def refused_and_gone_on(client: Client) -> None:
    await only_refused(client)
    assert (await client.chat(conversation("another matter")))[0] == 200


async def asked_again(client: Client) -> None:
    await only_refused(client)
    assert (await client.chat(conversation("hello")))[0] == 200


async def gone_on_from_it(client: Client) -> None:
    await only_refused(client)
    assert (await client.chat(conversation("hello", "(an error)", "go on")))[0] == 200


async def picture_left_out(client: Client) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "hello"}
    assert (await client.chat([{"role": "user", "content": [text, image]}]))[0] == 400
    assert (await client.chat([{"role": "user", "content": [text]}]))[0] == 200


async def unreadable_then_whole(client: Client) -> None:
    assert (await client.post("/v1/chat/completions", "no request at all"))[0] == 400
    assert (await client.chat(conversation("hello")))[0] == 200


@pytest.mark.parametrize("calls", [only_refused, refused_and_gone_on])
def test_an_agent_that_hides_a_refused_call_has_failed_with_that_call_as_the_root(calls):
    local = run(calls)
    history = local.history()
    assert history.status.name == "FAILED"
    assert history.reward is None
    (failure,) = history.failures
    assert (failure.cause, failure.type) == ("code", "RefusedCall")
    assert "bad_words" in failure.line
    assert "/v1/chat/completions" in failure.line
    assert "1 agent call refused, 1 agent call never answered" in as_text(local.report())


@pytest.mark.parametrize(
    "calls", [asked_again, gone_on_from_it, picture_left_out, unreadable_then_whole]
)
def test_one_that_asks_again_and_is_answered_has_its_outcome_and_the_refusal_is_shown(calls):
    local = run(calls)
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    (refused,) = history.refusals.values()
    (called,) = history.calls.values()
    assert refused.answer == called.answer
    assert "asked again and answered" in shown(local)
    report = local.report()
    assert (report.refused_calls, report.unanswered_calls) == (1, 0)
    assert report.clean.count == 1


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HI = {"messages": conversation("hi")}
ORDERED = {"messages": [{"role": "system", "content": "be brief"}, *conversation("hi")]}
WRONG_ROLE = [*conversation("hi", "yes?"), {"role": "usr", "content": "go on"}]
PUT_RIGHT = [
    (CHAT, {}, CHAT, HI),
    (CHAT, {"messages": []}, CHAT, HI),
    (CHAT, {"messages": "hi"}, CHAT, HI),
    (CHAT, {"messages": [{"role": "alien", "content": "hi"}]}, CHAT, HI),
    (CHAT, {"messages": [{"role": "user"}]}, CHAT, HI),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, CHAT, HI),
    (CHAT, {"messages": WRONG_ROLE}, CHAT, {"messages": conversation("hi", "yes?", "go on")}),
    (
        MESSAGES,
        {"messages": WRONG_ROLE},
        MESSAGES,
        {"messages": conversation("hi", "yes?", "go on")},
    ),
    (RESPONSES, {"input": WRONG_ROLE}, RESPONSES, {"input": conversation("hi", "yes?", "go on")}),
    (RESPONSES, {"input": "hi", "foo": 1}, RESPONSES, {"input": conversation("hi")}),
    (RESPONSES, {"input": "hi", "foo": 1}, CHAT, HI),
    (MESSAGES, {"system": "be brief", **HI, "foo": 1}, CHAT, ORDERED),
    (RESPONSES, {"instructions": "be brief", "input": conversation("hi"), "foo": 1}, CHAT, ORDERED),
]


@pytest.mark.parametrize(("path", "wrong", "again", "right"), PUT_RIGHT)
def test_a_call_that_is_put_right_is_asked_again_whatever_was_wrong_with_it(
    path, wrong, again, right
):
    async def calls(client: Client) -> None:
        for item, body in ((path, wrong), (again, right)):
            needed = {"model": "m"} | ({"max_tokens": 50} if item == MESSAGES else {})
            answers.append((await client.post(item, needed | body))[0])

    answers: list[int] = []
    history = run(calls).history()
    assert answers == [400, 200]
    assert history.status.name == "COMPLETED", history.failures


def test_what_follows_a_wrong_message_goes_on_from_what_was_before_it():
    async def calls(client: Client) -> None:
        assert (await client.chat(WRONG_ROLE))[0] == 400
        assert (await client.chat(conversation("another matter")))[0] == 200

    assert run(calls).history().failures[0].type == "RefusedCall"


def test_an_agent_of_which_every_call_was_refused_is_said_to_be_refused_not_to_have_asked_nothing():
    async def agent(binding, task):
        async with aiohttp.ClientSession() as http:
            await only_refused(Client(binding, http))

    local = LocalRun()
    local.run(BlackBoxRolloutProcessor(agent, on_refused="accept"))
    (failure,) = local.history().failures
    assert failure.type == "RefusedCall"
    assert "bad_words" in failure.line


def test_refused_calls_are_accepted_where_that_is_asked_for_and_counted_as_a_disturbance():
    local = run(refused_and_gone_on, on_refused="accept")
    assert local.history().status.name == "COMPLETED"
    report = local.report()
    assert (report.refused_calls, report.unanswered_calls) == (1, 1)
    assert (report.clean.count, report.disturbed.count) == (0, 1)
    assert "/v1/chat/completions was refused (400), never answered: " in shown(local)
    (row,) = local.rows(What.TRAJECTORIES)
    (refused,) = row["refused_calls"]
    assert (refused["status"], refused["answered"]) == (400, False)
    assert "bad_words" in refused["message"]


def test_what_to_do_about_refused_calls_is_checked_and_makes_another_run():
    with pytest.raises(UsageError, match='on_refused is "fail" or "accept", not \'perhaps\''):
        BlackBoxRolloutProcessor(["true"], on_refused="perhaps")
    default, accepting = (
        BlackBoxRolloutProcessor(["true"], on_refused=item).identity for item in ("fail", "accept")
    )
    assert default == BlackBoxRolloutProcessor(["true"]).identity != accepting


def test_a_call_that_the_gateway_itself_failed_to_answer_is_infrastructure(monkeypatch):
    broken = [RuntimeError("a bug of ours")]
    read = OpenAIChat.parse

    def parse(self, body, known=None):
        if broken:
            raise broken.pop()
        return read(self, body, known)

    monkeypatch.setattr(OpenAIChat, "parse", parse)
    local = run(lambda client: client.chat(conversation("hello")))
    history = local.history()
    # The next attempt was answered.
    assert history.status.name == "COMPLETED"
    (failure,) = history.failures
    assert (failure.cause, failure.type) == ("infrastructure", "UnansweredCall")
    assert "a bug of ours" not in failure.message


def test_what_samples_nothing_and_what_meets_a_limit_is_no_refused_call():
    async def calls(client: Client) -> None:
        assert (await client.post("/v1/messages/count_tokens", {"nothing": 1}))[0] == 400
        assert (await client.post("/v1/embeddings", {"input": "x"}))[0] == 404
        assert (await client.post("/tools/unknown", {}))[0] == 404
        assert (await client.chat(conversation("hello")))[0] == 400
        assert (await client.chat(conversation("less"), **FORBIDDEN))[0] == 400

    local = run(calls, policy=Oracle(lambda request: ContextOverflow("too long")))
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "context_overflow")
    assert not history.refusals


def test_the_same_refusal_is_recorded_once_in_an_attempt():
    async def calls(client: Client) -> None:
        for _ in range(20):
            await only_refused(client)
        await asked_again(client)

    local = run(calls)
    assert local.history().status.name == "COMPLETED"
    assert len(local.history().refusals) == 1
