"""Agents that run as a service: started, followed, stopped, and never mixed up."""

import asyncio

import pytest
from aiohttp import web

from holdfast.gateway.agents.remote import RemoteRolloutProcessor
from holdfast.records.errors import UsageError
from support.engine.local_run import LocalRun
from support.gateway.agent_service import AgentService


def run(local: LocalRun, service: AgentService, **options) -> None:
    settings = {key: options.pop(key) for key in ("max_retry",) if key in options}

    async def body() -> None:
        async with service:
            await local.work(RemoteRolloutProcessor(service.url, **options), **settings)

    asyncio.run(body())


def test_a_service_is_followed_until_it_is_done():
    local, service = LocalRun("a", "b"), AgentService()
    run(local, service)
    for history in local.histories().values():
        assert history.status.name == "COMPLETED", history.failures
        assert history.reward == 0.75
        assert history.finished.turns_used == 2
        assert len(history.generations) == 2
        assert history.prefix_breaks == 0
    assert sorted(service.started) == [("run/a/0", 1), ("run/b/0", 1)]
    assert not service.stopped


def test_a_service_that_fails_is_tried_again_and_samples_nothing_twice():
    local, service = LocalRun(), AgentService({0: "fails"})
    run(local, service)
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert "out of ideas" in history.failures[0].message
    assert len(local.policy.requests) == 2
    assert service.started == [("run/a/0", 1), ("run/a/0", 2)]


def test_a_silent_service_is_stopped_and_tried_again():
    local, service = LocalRun(), AgentService({0: "hangs"})
    run(local, service, silence=2.0)
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert history.failures[0].type == "AgentSilent"
    assert service.stopped == ["run-a-0-1"]


def test_a_report_about_another_attempt_is_not_taken_for_this_one():
    local, service = LocalRun(), AgentService({0: "other attempt"})
    run(local, service)
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert "reports about run/a/0, attempt 2" in history.failures[0].message
    assert history.failures[0].cause == "environment"


def test_a_service_that_answers_otherwise_is_told_how_in_the_same_words_for_each_run():
    local, service = LocalRun("a", "b"), AgentService({0: "other words", 1: "other words"})
    run(local, service, max_retry=0)
    messages = {history.failures[0].message for history in local.histories().values()}
    assert len(messages) == 1
    assert (
        'the answer to GET /runs/ID has to be {"status": "running", "completed"' in messages.pop()
    )


def test_a_service_that_never_asks_is_told_where_it_finds_the_gateway():
    local, service = LocalRun(), AgentService({0: "mute"})
    run(local, service, max_retry=0)
    history = local.history()
    assert (history.status.name, history.reward) == ("FAILED", None)
    assert "from `url` and `key` of POST /runs" in history.failures[-1].message


def test_a_service_out_of_reach_is_the_environments_failure():
    local = LocalRun()
    local.run(RemoteRolloutProcessor("http://127.0.0.1:1", patience=0.3), max_retry=0)
    history = local.history()
    assert history.status.name == "FAILED"
    assert "out of reach" in history.failures[-1].message
    assert history.failures[-1].cause == "environment"
    assert history.reward is None


def test_an_address_is_checked_first():
    with pytest.raises(UsageError, match="is not an address"):
        RemoteRolloutProcessor("agents.example.org")


def test_a_service_that_answers_in_no_text_has_broken():
    async def started(_: web.Request) -> web.Response:
        return web.Response(body=b'{"id": "\xff"}', content_type="application/json")

    local = LocalRun()

    async def body():
        app = web.Application()
        app.router.add_post("/runs", started)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            solve = RemoteRolloutProcessor(f"http://127.0.0.1:{port}")
            await local.work(solve, max_retry=0)
        finally:
            await runner.cleanup()

    asyncio.run(body())
    assert {str(failure.cause) for failure in local.history().failures} == {"environment"}
