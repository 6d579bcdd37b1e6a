"""Ids and keys of calls are made of what they say: not of when they come, nor of how they are
written."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.journal.sqlite.store import SqliteStore
from support.gateway.calls import SCHEMA, SHOWN, AsSent, turned
from support.gateway.counter import CHAT, RESPONSES, Counter, exchange, opened, post
from support.rollout.stage import Oracle, TrajectoryUnderTest, text_of

CALLING = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


class OrderedTrajectory(TrajectoryUnderTest):
    async def session(self, **options):
        session = await super().session(**options)
        session.speaker = type(session.speaker)(session.speaker.policy, AsSent())
        return session


class Stage:
    """A trajectory whose attempts come one after another."""

    def __init__(self, answer, subject: type[TrajectoryUnderTest] = OrderedTrajectory):
        self.subject = subject(Oracle(answer))

    @asynccontextmanager
    async def attempt(self):
        """(how to ask, the trajectory)"""
        async with Gateway(WIRES) as gateway:
            counter = Counter(gateway, self.subject)
            async with counter.attempt() as (trajectory, binding):

                async def ask(path: str, body: dict) -> dict:
                    body = {"model": "m", **body}
                    reply = await exchange(counter.port, post(path, body, binding))
                    assert reply.status == 200, reply.body
                    return reply.json

                yield ask, trajectory

    @property
    def sampled(self) -> int:
        return len(self.subject.oracle.requests)


def perform(body):
    return asyncio.run(body())


def request_of(*arguments: str) -> dict:
    return {
        **SHOWN[CHAT],
        "messages": [{"role": "user", "content": argument} for argument in arguments],
    }


def calls_of(answer: dict) -> list[str]:
    return [tool_call["id"] for tool_call in answer["choices"][0]["message"]["tool_calls"]]


def after(request: dict, answer: dict) -> dict:
    """The next request of an agent that was told to add."""
    results = [{"role": "tool", "tool_call_id": call, "content": "3"} for call in calls_of(answer)]
    message = answer["choices"][0]["message"]
    return {**request, "messages": [*request["messages"], message, *results]}


# --- ids


def test_the_ids_of_calls_at_once_do_not_depend_on_which_comes_first():
    async def ids_of(*arguments: str):
        stage = Stage(lambda _: CALLING * 2)
        async with stage.attempt() as (ask, _):
            first = {word: await ask(CHAT, request_of(word)) for word in arguments}
            then = {
                word: await ask(CHAT, after(request_of(word), first[word])) for word in arguments
            }
        return {
            word: [result[word][part] for result in (first, then) for part in ("id", "choices")]
            for word in arguments
        }

    async def body():
        reply = await ids_of("one", "two", "three")
        assert reply == await ids_of("three", "one", "two")
        assert reply == await ids_of("two", "three", "one")

    perform(body)


def test_the_same_words_again_have_ids_of_their_own():
    async def body():
        stage = Stage(lambda _: CALLING)
        async with stage.attempt() as (ask, _):
            answers = [await ask(CHAT, {**request_of("add"), "n": 2}) for _ in range(2)]
        ids = [
            call["id"]
            for answer in answers
            for choice in answer["choices"]
            for call in choice["message"]["tool_calls"]
        ]
        assert len(set(ids)) == 4
        assert len({answer["id"] for answer in answers}) == 2

    perform(body)


def test_a_reply_of_several_calls_is_one_message_when_a_client_sends_it_back_without_item_ids():
    async def body():
        stage = Stage(
            lambda request: CALLING * 2 if "done" not in text_of(request.prompt) else "so"
        )
        async with stage.attempt() as (ask, trajectory):
            body = {**SHOWN[RESPONSES], "input": [{"role": "user", "content": "add"}]}
            answer = await ask(RESPONSES, body)
            calls = [{**item} for item in answer["output"] if item["type"] == "function_call"]
            for call in calls:
                del call["id"]
            results = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
                for call in calls
            ]
            # Each result behind its call, as some clients keep them.
            mixed = [item for pair in zip(calls, results, strict=True) for item in pair]
            await ask(RESPONSES, {**body, "input": [*body["input"], *mixed]})
            *_, last = trajectory.session.history.generations
            assert last.base == "0.0.0"
            assert not last.prefix_break

    perform(body)


# --- orders


@pytest.mark.parametrize("path", SHOWN)
def test_tools_in_another_order_are_the_same_call(path):
    async def body():
        stage = Stage(lambda _: CALLING)
        async with stage.attempt() as (ask, _):
            first = await ask(path, SHOWN[path])
        async with stage.attempt() as (ask, _):
            assert await ask(path, turned(SHOWN[path])) == first
            assert stage.sampled == 1
        async with stage.attempt() as (ask, _):
            assert await ask(path, SHOWN[path]) == first
            again = await ask(path, turned(SHOWN[path]))
            assert again["id"] != first["id"]
        assert stage.sampled == 2

    perform(body)


def test_a_schema_in_another_order_is_the_same_call():
    async def body():
        stage = Stage(lambda _: '{"a": 1}')
        request = {"messages": request_of("add")["messages"], "response_format": FORM}
        async with stage.attempt() as (ask, _):
            first = await ask(CHAT, request)
        async with stage.attempt() as (ask, _):
            assert await ask(CHAT, turned(request)) == first
            other = {**request, "response_format": {"type": "json_object"}}
            assert (await ask(CHAT, other))["id"] != first["id"]
        assert stage.sampled == 2

    perform(body)


def test_other_tools_are_another_call():
    async def body():
        stage = Stage(lambda _: CALLING)
        async with stage.attempt() as (ask, _):
            first = await ask(CHAT, SHOWN[CHAT])
            other = json.loads(json.dumps(SHOWN[CHAT]).replace("integer", "number"))
            assert (await ask(CHAT, other))["id"] != first["id"]
            both = {**SHOWN[CHAT], "tools": [*other["tools"], *SHOWN[CHAT]["tools"]]}
            turned_round = {**both, "tools": both["tools"][::-1]}
            ids = {(await ask(CHAT, item))["id"] for item in (both, turned_round)}
            assert len(ids) == 2
        assert stage.sampled == 4

    perform(body)


def test_what_is_rendered_is_what_was_sent():
    async def body():
        for body in (SHOWN[CHAT], turned(SHOWN[CHAT])):
            stage = Stage(lambda _: CALLING)
            async with stage.attempt() as (ask, _):
                await ask(CHAT, body)
            (request,) = stage.subject.oracle.requests
            shown = json.dumps(body["tools"], separators=(",", ":"))
            assert shown in text_of(request.prompt)
            (called,) = (await stage.subject.history()).calls.values()
            assert await stage.subject.journal.get_blob(called.tools) == shown.encode()

    perform(body)


@pytest.mark.parametrize("is_restarted", [False, True], ids=["going on", "restarted"])
def test_a_conversation_goes_on_with_its_tokens_when_its_tools_come_in_another_order(is_restarted):
    async def body():
        stage = Stage(lambda _: CALLING)
        async with stage.attempt() as (ask, trajectory):
            first = await ask(CHAT, SHOWN[CHAT])
            if not is_restarted:
                await ask(CHAT, turned(after(SHOWN[CHAT], first)))
                last = trajectory.session.history.steps["1.0.0"]
        if is_restarted:
            async with stage.attempt() as (ask, trajectory):
                await ask(CHAT, turned(after(SHOWN[CHAT], first)))
                last = trajectory.session.history.steps["1.0.0"]
        assert last.base == "0.0.0"
        assert not last.prefix_break

    perform(body)


def test_a_trajectory_whose_tools_are_damaged_in_the_record_goes_on():
    async def body():
        stage = Stage(lambda _: CALLING)
        async with stage.attempt() as (ask, _):
            first = await ask(CHAT, SHOWN[CHAT])
        await stage.subject.journal.transact(SqliteStore.run, "DELETE FROM blobs")
        async with stage.attempt() as (ask, trajectory):
            await ask(CHAT, turned(after(SHOWN[CHAT], first)))
            last = trajectory.session.history.steps["1.0.0"]
            assert last.prefix_break == "the tools were changed"

    perform(body)


@pytest.mark.parametrize("path", SHOWN)
def test_tools_that_cannot_be_recorded_are_refused(path):
    async def body():
        async with opened() as (counter, _, binding):
            large = json.dumps({"model": "m", **SHOWN[path]}).replace('"x"', f"{2**70}")
            reply = await exchange(counter.port, post(path, large.encode(), binding))
            assert reply.status == 400
            assert b"64 bits" in reply.body

    perform(body)
