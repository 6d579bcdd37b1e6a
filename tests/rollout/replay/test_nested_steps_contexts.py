"""Contexts: whose step code belongs to is known, and keeps nobody alive."""

import asyncio
import contextvars
import gc
import weakref

import holdfast
from holdfast.rollout.replay.current_code import StepScope, is_in_step
from support.engine.local_run import LocalRun, turn
from support.rollout.stage import call


def test_a_context_that_outlives_its_attempt_keeps_nothing_of_it():
    contexts, sessions = [], []

    @holdfast.tool(contract="idempotent")
    async def connect() -> str:
        """Opens something that stays."""
        contexts.append(contextvars.copy_context())
        return "open"

    async def solve(t):
        await turn(t)
        sessions.append(weakref.ref(t.session))
        await t.tool(call("connect"), connect)

    LocalRun("a", "b").run(solve)
    gc.collect()
    assert len(contexts) == 2
    assert [session() for session in sessions] == [None, None]


class Log:
    def mark_running(self, path):
        pass

    async def cut_below(self, path):
        pass


class Session:
    log = Log()


async def test_a_coroutine_that_is_closed_elsewhere_changes_nothing_there():
    mine, other = Session(), Session()

    async def unfinished():
        async with StepScope(other, "0"):
            await asyncio.sleep(60)

    async def main():
        job = contextvars.Context().run(asyncio.create_task, unfinished())
        await asyncio.sleep(0)
        async with StepScope(mine, "3"):
            job.get_coro().close()
            return is_in_step(mine), job

    inside, job = await main()
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    assert (inside) is True


def test_an_environments_thread_knows_whose_step_it_is_in():
    places = []

    class World(holdfast.Environment):
        recovery = "stateless"

        def __init__(self, t, loop):
            self.t, self.loop = t, loop

        def reset(self, *, seed):
            step = self.t.value(lambda: 1, name="inside")
            asyncio.run_coroutine_threadsafe(step, self.loop).result(60)
            return holdfast.Observation("ready")

    async def solve(t):
        await t.env(World(t, asyncio.get_running_loop()))
        await t.value(lambda: 2, name="after")

    local = LocalRun()
    local.run(solve)
    places = [step.path for step in local.history().in_order]
    assert "0.0.0" in places
    assert "1" in places, "what follows has the place that it has on replay"


def test_a_limit_is_not_set_in_code_that_does_not_run_on_replay():
    async def solve(t):
        await t.value(lambda: t.limit(turns=1))

    local = LocalRun()
    local.run(solve, max_retry=0)
    (failure,) = local.history().failures
    assert failure.line.startswith("UsageError: t.limit in a tool")
