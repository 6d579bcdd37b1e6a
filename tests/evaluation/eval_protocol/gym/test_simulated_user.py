"""The user of a gym's row is played by a model, or the row is refused: never left out."""

import asyncio

import pytest
from aiohttp import web

from holdfast.engine.export.export import What
from holdfast.evaluation.eval_protocol.gym.processor import MCPGymRolloutProcessor
from holdfast.evaluation.eval_protocol.gym.simulated_user import SAME
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.records.errors import EngineUnavailable
from support.engine.local_run import LocalRun
from support.evaluation.gym_runs import SCRIPT, rows_of, say, yard_of
from support.rollout.stage import ByteRenderer, Oracle, text_of

USER = "You are a customer"


def user_says(prompt: str) -> str:
    """Asks for two numbers, one after the other, and is content then."""
    if "I said 2" in prompt:
        return "Thank you. ###STOP###"
    return "Now the next one." if "I said 1" in prompt else "Please count."


def policy_says(prompt: str) -> str:
    count = prompt.count("heard")
    if count < (2 if "Now the next one." in prompt else 1):
        return say(count + 1)
    return f"I said {count}."


def either(request) -> str:
    prompt = text_of(request.prompt)
    return user_says(prompt) if USER in prompt else policy_says(prompt)


def simulated(answer=either, **message: object) -> LocalRun:
    text = {"enabled": True, "system_prompt": "Hear two numbers.", **message}
    return yard_of(answer, user_simulation=text, user_prompt_template="Customer: {observation}")


def test_the_user_speaks_first_and_ends_the_conversation_all_by_the_rows_template():
    local = simulated()
    local.run(MCPGymRolloutProcessor(SCRIPT))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    (row,) = rows_of(local)
    spoken = [
        (message.role, message.content)
        for message in row.messages
        if message.role in ("user", "assistant")
    ]
    assert [items for items in spoken if items[1]] == [
        ("user", "Customer: Please count."),
        ("assistant", "I said 1."),
        ("user", "Customer: Now the next one."),
        ("assistant", "I said 2."),
        ("user", "Customer: Thank you. ###STOP###"),
    ]
    assert row.get_total_reward() == 0.5, "two of three steps were taken"


def test_steps_bound_the_answers_to_the_user_and_not_the_tool_calls_for_them():
    local = simulated()
    local.run(MCPGymRolloutProcessor(SCRIPT, steps=2))
    assert local.statuses() == {"a/0": ("TRUNCATED", True)}
    (row,) = rows_of(local)
    answers = [
        message.content
        for message in row.messages
        if message.role == "assistant" and message.content
    ]
    assert answers == ["I said 1.", "I said 2."]
    texts = [text_of(request.prompt) for request in local.policy.requests]
    assert sum(USER in text for text in texts) == 2, "nobody would hear its next answer"


def test_only_the_policys_side_is_trained():
    local = simulated()
    local.run(MCPGymRolloutProcessor(SCRIPT))
    sides = {step.trainable for step in local.history().generations if "." in step.path}
    assert sides == {False}
    assert all(step.trainable for step in local.history().generations if "." not in step.path)


def test_a_retry_replays_what_the_user_said():
    broken = []

    def answer(request):
        prompt = text_of(request.prompt)
        if USER not in prompt and "Now the next one." in prompt and not broken:
            broken.append(request.id)
            return EngineUnavailable("gone")
        return either(request)

    local = simulated(answer)
    local.run(MCPGymRolloutProcessor(SCRIPT))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert len(local.history().failures) == 1
    texts = [text_of(request.prompt) for request in local.policy.requests]
    assert sum(USER in text for text in texts) == 3, "none of the user's turns is sampled twice"


def test_a_user_that_another_model_plays_is_refused_until_somebody_says_who_speaks():
    local = simulated(llm="gpt-4.1")
    local.run(MCPGymRolloutProcessor(SCRIPT))
    (failure,) = local.history().failures
    assert failure.type == "UsageError"
    assert "'gpt-4.1'" in failure.message
    assert "user_policy" in failure.message
    local = simulated(llm="gpt-4.1")
    local.run(
        MCPGymRolloutProcessor(SCRIPT).configured(rollout_processor_kwargs={"user_policy": SAME})
    )
    assert local.statuses() == {"a/0": ("COMPLETED", True)}


def test_a_policy_of_its_own_plays_the_user():
    other = Oracle(lambda request: user_says(text_of(request.prompt)))
    other.model = "gpt-4.1"
    local = simulated(lambda request: policy_says(text_of(request.prompt)), llm="gpt-4.1")
    local.run(MCPGymRolloutProcessor(SCRIPT, user_policy=other, user_renderer=ByteRenderer()))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert len(other.requests) == 3
    assert {request.sampling.temperature for request in other.requests} == {0.0}


def test_an_argument_that_nobody_knows_is_refused_by_name():
    local = simulated(llm_args={"warmth": 3})
    local.run(MCPGymRolloutProcessor(SCRIPT))
    (failure,) = local.history().failures
    assert "llm_args" in failure.message
    assert "warmth" in failure.message


def test_a_user_that_is_not_enabled_is_none():
    local = yard_of(user_simulation={"enabled": False, "llm": "gpt-4.1"})
    local.run(MCPGymRolloutProcessor(SCRIPT))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}


async def chat(request: web.Request) -> web.Response:
    """An engine of messages that serves two models."""
    body = await request.json()
    text = "Please count." if body["model"] == "the-user" else "I said 0. ###STOP###"
    asks = sum(message["role"] == "user" for message in body["messages"])
    if body["model"] == "the-user" and asks > 1:
        text = "###STOP###"
    message = {"role": "assistant", "content": text}
    return web.json_response(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
    )


KEYS = web.AppKey("keys", list)


async def models(request: web.Request) -> web.Response:
    request.app[KEYS].append(request.headers.get("authorization"))
    listed = [{"id": name, "object": "model"} for name in ("evaluated", "the-user")]
    return web.json_response({"object": "list", "data": listed})


@pytest.mark.parametrize(
    ("named", "status", "message"),
    [("the-user", "COMPLETED", ""), ("nobody", "FAILED", "user_policy=")],
)
def test_a_model_that_the_row_names_speaks_where_the_runs_engine_serves_it(named, status, message):
    async def body() -> LocalRun:
        app = web.Application()
        app[KEYS] = []
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        policy = EnginePolicy(url, "evaluated", api_key="a-key")
        try:
            await policy.check()
            local = simulated(llm=named)
            local.policy, local.renderer = policy, MessagesOnly()
            await local.work(MCPGymRolloutProcessor(SCRIPT), max_retry=0)
        finally:
            await policy.aclose()
            await runner.cleanup()
        assert set(app[KEYS]) == {"Bearer a-key"}
        return local

    local = asyncio.run(body())
    history = local.history()
    assert history.status.name == status, history.failures
    assert message in "".join(failure.message for failure in history.failures)
    (row,) = local.rows(What.ROWS)
    assert row["input_metadata"]["completion_params"]["model"] != "the-user"
