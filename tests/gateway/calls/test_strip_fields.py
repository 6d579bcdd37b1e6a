"""What whoever runs the gateway names is left out of requests, and said to be; anything else that
cannot be followed is refused as ever."""

import asyncio
import json
import logging

import openai
import pytest

from holdfast.cli.main import main
from holdfast.gateway.agents.remote import RemoteRolloutProcessor
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.gateway.calls.unsupported import IgnoredFields, rejection_of
from holdfast.gateway.protocol.messages import GenerationRequest
from holdfast.records.errors import Unsupported, UsageError
from holdfast.testing import FakeEngine
from support.engine.local_run import LocalRun
from support.gateway.counter import (
    BODIES,
    CHAT,
    COUNT,
    HELLO,
    MESSAGES,
    RESPONSES,
    exchange,
    opened,
    post,
)
from support.gateway.gateway_process import REPLIES, RUN, GatewayProcess, posted, until
from support.rollout.stage import Oracle

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}
BUILT_IN = [
    {"type": "web_search"},
    {"type": "namespace", "name": "x", "tools": []},
    {"type": "image_generation"},
]
UNFOLLOWED = [
    (CHAT, {"bad_words": ["x"]}, "bad_words"),
    (CHAT, {"min_tokens": 5}, "min_tokens"),
    (CHAT, {"length_penalty": 0.5}, "length_penalty"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"wholly_unknown": {"a": [1]}}, "wholly_unknown"),
    (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
    (RESPONSES, {"truncation": "auto"}, "truncation"),
    (RESPONSES, {"tools": [FUNCTION, *BUILT_IN[:1]]}, "tool:web_search"),
    (MESSAGES, {"thinking": {"type": "between_tools"}}, "thinking"),
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "s"}]}, "tool:web_search_*"),
]


def perform(body):
    return asyncio.run(body())


async def reply_and_record(ignore, path: str, more: dict):
    """The reply, and what is recorded of it."""
    async with opened(ignore=ignore) as (counter, trajectory, binding):
        reply = await exchange(counter.port, post(path, {**BODIES[path], **more}, binding))
        recorded = [call.ignored for call in trajectory.session.history.calls.values()]
        return reply, recorded, counter.subject.oracle.requests


@pytest.mark.parametrize(("path", "more", "name"), UNFOLLOWED)
def test_what_cannot_be_followed_is_refused_unless_it_is_named(path, more, name, caplog):
    caplog.set_level(logging.INFO, "holdfast.gateway")

    async def body():
        reply, recorded, _ = await reply_and_record(["nothing_of_it", "tool:other"], path, more)
        assert reply.status == 400
        assert not recorded
        assert "ignored=" not in caplog.text
        reply, recorded, _ = await reply_and_record([name], path, more)
        assert reply.status == 200, reply.body
        changed = name.replace("web_search_*", "web_search_20250305")
        assert recorded == [(changed,)]
        assert f"ignored={changed}\n" in caplog.text

    perform(body)


def test_a_call_is_the_same_whatever_was_left_out_of_it():
    async def body():
        async with opened(ignore=["seed"]) as (counter, _, binding):
            first = await exchange(counter.port, post(CHAT, {**HELLO, "seed": 1}, binding))
            counter.gateway.release(binding)
            async with counter.attempt() as (_, again):
                second = await exchange(counter.port, post(CHAT, {**HELLO, "seed": 2}, again))
            assert second.body == first.body

    perform(body)


def test_what_is_named_is_left_out_also_where_it_could_be_followed():
    async def body():
        more = {"temperature": 0.1, "top_p": 0.5, "max_tokens": 7}
        names = ["temperature", "max_tokens"]
        for path in (CHAT, MESSAGES):
            reply, recorded, (request,) = await reply_and_record(names, path, more)
            assert reply.status == 200
            assert request.sampling.temperature == 1.0
            assert request.sampling.top_p == 0.5
            assert request.sampling.max_tokens == 1024
            assert recorded == [tuple(names)]

    perform(body)


def test_nothing_is_said_of_what_was_not_there():
    async def body():
        reply, recorded, _ = await reply_and_record(
            ["seed", "tool:*", "text.verbosity"], CHAT, {"seed": None}
        )
        assert reply.status == 200
        assert recorded == [()]
        reply, recorded, _ = await reply_and_record(["text.verbosity"], RESPONSES, {"text": {}})
        assert reply.status == 200
        assert recorded == [()]

    perform(body)


def test_tools_that_the_agent_runs_itself_stay_and_the_others_go():
    async def body():
        tools = [*BUILT_IN, FUNCTION, {"type": "web_search"}]
        reply, recorded, _ = await reply_and_record(["tool:*"], RESPONSES, {"tools": tools})
        assert reply.status == 200
        assert recorded == [("tool:web_search", "tool:namespace", "tool:image_generation")]
        own = {"name": "look", "input_schema": {"type": "object"}}
        tools = [own, {**own, "name": "b", "type": "custom"}, {"type": "bash_1", "name": "c"}]
        async with opened(ignore=["tool:*"]) as (counter, _, binding):
            sent = {**HELLO, "tools": tools}
            plain = {**HELLO, "tools": tools[:2]}
            counts = [
                (await exchange(counter.port, post(COUNT, item, binding))).json
                for item in (sent, plain, HELLO)
            ]
            assert counts[0] == counts[1] != counts[2]

    perform(body)


def test_a_members_name_goes_out_of_every_tool():
    async def body():
        tool = {"name": "look", "input_schema": {"type": "object"}, "defer_loading": True}
        reply, *_ = await reply_and_record([], MESSAGES, {"tools": [tool]})
        assert reply.status == 400
        reply, recorded, _ = await reply_and_record(
            ["tools.defer_loading"], MESSAGES, {"tools": [tool]}
        )
        assert reply.status == 200
        assert recorded == [("tools.defer_loading",)]

    perform(body)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"tools": 1}', b'{"tools": [1]}', b'{"text": ' + b"[" * 5000, b"\xff"],
)
def test_what_is_malformed_is_refused_in_the_wires_words(body):
    async def ask():
        replies = []
        for ignore in ([], ["seed", "tool:*", "text.verbosity", "tools.strict"]):
            async with opened(ignore=ignore) as (counter, _, binding):
                replies.append(await exchange(counter.port, post(RESPONSES, body, binding)))
        assert replies[0].status == replies[1].status == 400
        assert replies[0].body == replies[1].body

    perform(ask)


def test_a_clients_words_are_recorded_only_as_a_name(caplog):
    caplog.set_level(logging.INFO, "holdfast.gateway")

    async def body():
        tools = [{"type": "a\nlevel=forged " + "x" * 900}, {"type": "fine_1"}]
        reply, recorded, _ = await reply_and_record(["tool:*"], RESPONSES, {"tools": tools})
        assert reply.status == 200
        assert recorded == [("tool:*", "tool:fine_1")]
        assert "forged" not in caplog.text

    perform(body)


@pytest.mark.parametrize(
    "name",
    [
        "messages",
        "input",
        "tools",
        "stream",
        "messages.content",
        "",
        "a b",
        "tool:",
        "tool:function",
        "-x",
        "a..b",
    ],
)
def test_a_name_that_cannot_be_ignored_is_said_to_be_at_once(name):
    for make in (
        IgnoredFields,
        lambda names: BlackBoxRolloutProcessor(["agent"], ignore=names),
        lambda names: RemoteRolloutProcessor("http://127.0.0.1:9", ignore=names),
    ):
        with pytest.raises(UsageError, match="cannot be ignored"):
            make([name])
    with pytest.raises(UsageError, match="a list of names"):
        IgnoredFields("seed")


def test_the_openai_library_works_with_the_built_in_tools_that_an_agent_insists_on():
    async def agent(binding, task):
        def blocking():
            with openai.OpenAI(base_url=f"{binding.url}/v1", api_key=binding.key) as client:
                return client.responses.create(
                    model="m",
                    input="look",
                    tools=[*BUILT_IN, FUNCTION],
                    stream=False,
                    extra_body={"seed": 3},
                )

        message = await asyncio.to_thread(blocking)
        assert message.output_text == "found"

    local_run = LocalRun(policy=Oracle(lambda _: "found"))
    local_run.run(BlackBoxRolloutProcessor(agent, ignore=["tool:*", "seed"]))
    history = local_run.history()
    assert history.status.name == "COMPLETED", history.failures
    (called,) = history.calls.values()
    names = ("seed", "tool:web_search", "tool:namespace", "tool:image_generation")
    assert called.ignored == names


def test_what_is_ignored_is_part_of_what_makes_a_run():
    plain = BlackBoxRolloutProcessor(["agent"])
    assert plain.identity == BlackBoxRolloutProcessor(["agent"], ignore=[]).identity
    processor = BlackBoxRolloutProcessor(["agent"], ignore=["seed", "top_k"])
    assert (
        processor.identity == BlackBoxRolloutProcessor(["agent"], ignore=["top_k", "seed"]).identity
    )
    assert processor.identity != plain.identity


def test_the_command_leaves_out_what_it_is_told_to_and_says_so(tmp_path, capsys):
    with FakeEngine(replies=REPLIES) as engine:
        gateway = GatewayProcess(tmp_path, engine, "--ignore", "seed,top_k", tasks=("a",))
        try:
            gateway.start("--ignore", "tool:*", "--workers", "2")
            until(lambda: gateway.trajectories())
            taken = until_taken(gateway)
            more = {"seed": 3, "tools": [{"type": "web_search"}]}
            body = {"model": "m", "messages": taken["task"]["messages"], **more}
            posted(f"{gateway.url}/v1/chat/completions", body, taken["key"])
            posted(f"{gateway.url}/complete", {"reward": 1}, taken["key"])
            assert gateway.ended() == 0, gateway.output
        finally:
            gateway.close()
        (history,) = gateway.histories().values()
        (called,) = history.calls.values()
        assert called.ignored == ("seed", "tool:web_search")
        assert "ignored=seed,tool:web_search" in gateway.log.read_text()
        assert main(["show", RUN, "a/0", "--journal", str(gateway.journal)]) == 0
        out = capsys.readouterr().out
        assert "seed was left out of 1 call, as the gateway's options say" in out
        assert "tool:web_search was left out of 1 call" in out
        assert main(["show", RUN, "a/0", "--json", "--journal", str(gateway.journal)]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["ignored"] == {"seed": 1, "tool:web_search": 1}
        gateway.start()
        assert gateway.ended() == 3
        assert "without tool:*" in gateway.output, gateway.output


def until_taken(gateway: GatewayProcess) -> dict:
    results: list[dict] = []

    def take() -> bool:
        try:
            results.append(posted(f"{gateway.url}/trajectories", {"wait": 5}))
        except OSError:
            return False
        return True

    until(take)
    return results[0]


def test_the_way_out_is_a_sentence_of_its_own():
    async def body():
        reply, _, _ = await reply_and_record([], MESSAGES, {"foo": 1})
        assert b"foo: Extra inputs are not permitted. The gateway can leave it out: " in reply.body

    perform(body)


def test_an_effort_that_cannot_be_followed_is_refused_once_and_without_a_path_of_the_driver():
    local = "reasoning_effort cannot be followed: the chat template of /home/me/m never reads it"
    why = "its chat template never reads it"
    refused = rejection_of(
        Unsupported("reasoning_effort", local, why=why), GenerationRequest("m", ()), CHAT
    )
    assert refused.message == (
        "Unsupported parameter: 'reasoning_effort' is not supported with this model: its chat "
        'template never reads it. The gateway can leave it out: ignore=["reasoning_effort"] '
        "(--ignore reasoning_effort)."
    )


@pytest.mark.parametrize(
    "name", ["previous_response_id", "conversation", "conversation.id", "functions", "suffix"]
)
def test_what_stands_for_a_conversation_or_for_all_tools_cannot_be_ignored(name):
    with pytest.raises(UsageError, match="a request is nothing without it"):
        IgnoredFields([name])


@pytest.mark.parametrize("name", [1, None, ["seed"]])
def test_what_is_no_name_cannot_be_ignored(name):
    with pytest.raises(UsageError, match="a list of names"):
        IgnoredFields(["seed", name])
