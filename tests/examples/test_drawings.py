"""The drawings example: one real Chromium for all rows, whatever happens to it."""

import asyncio
import os
import signal

import pytest

import holdfast
from holdfast.records.errors import PolicyRefused
from support.examples.studio import (
    CIRCLE,
    GREEN,
    HEAD,
    SMALLER,
    Studio,
    drawings,
    drivers,
    needs_chromium,
    until,
)

pytestmark = needs_chromium


# --- one browser


def test_one_browser_is_started_for_all_rows_and_closed_at_the_end(browsers):
    answers = [
        CIRCLE,
        f"Sure!\n```svg\n{SMALLER}\n```",
        GREEN,
        "I cannot draw.",
        "<svg><circle</svg>",
        f"{HEAD}</svg>",
    ]
    studio = Studio(*answers, tasks=2)
    studio.run()
    browsers.assert_gone()
    assert len(browsers.pids) == 1
    for task in range(2):
        exact, near, wrong, *nothing = studio.rewards()[6 * task : 6 * task + 6]
        assert exact == 1.0
        assert 0.4 < near < 0.7, "nine sixteenths of it are there"
        assert wrong == 0.0, "farther from the circle than the empty sheet"
        assert nothing == [0.0, 0.0, 0.0]


def test_the_task_s_own_drawing_is_rendered_once(browsers):
    drawn = []

    class Watched(drawings.Drawing):
        async def _draw(self, browser, svg):
            drawn.append(svg)
            return await super()._draw(browser, svg)

    Studio(SMALLER, SMALLER, SMALLER).run(Watched(), concurrency=1)
    assert drawn == [CIRCLE, SMALLER, SMALLER, SMALLER]


def test_a_task_that_shows_nothing_is_a_mistake_and_no_reward(browsers):
    studio = Studio(CIRCLE, wanted=f"{HEAD}</svg>")
    studio.run()
    assert studio.rewards() == [None]
    (*_, failure) = studio.histories()["task-0/0"].failures
    assert (failure.cause, failure.type) == ("code", "ValueError")


def test_a_run_that_is_resumed_renders_nothing_again(browsers):
    studio = Studio(SMALLER, GREEN, CIRCLE)
    studio.run()
    before = studio.rewards()
    studio.run()
    assert len(browsers.pids) == 1, "there was nothing left to do"
    assert studio.rewards() == before


# --- accidents


def test_a_browser_that_is_killed_is_started_again_once_for_all_rows(browsers):
    studio = Studio(*[CIRCLE, SMALLER, GREEN] * 4)
    answer, body = studio.policy.answer, 0

    async def answers(request):
        nonlocal body
        body += 1
        if body == 7:
            browsers.kill()  # Six rows render, or are about to.
        return answer(request)

    studio.policy.answer = answers
    studio.run(concurrency=6)
    assert len(browsers.pids) == 2
    assert studio.rewards() == [1.0, studio.rewards()[1], 0.0] * 4
    assert 0.4 < studio.rewards()[1] < 0.7
    assert not any(history.failures for history in studio.histories().values())
    browsers.assert_gone()


def test_a_browser_that_keeps_dying_is_no_reward(browsers):
    class Doomed(drawings.Drawing):
        async def _draw(self, browser, svg):
            browsers.kill()
            await until(lambda: not browser.is_connected())
            return await super()._draw(browser, svg)

    studio = Studio(CIRCLE)
    studio.run(Doomed(), max_retry=0)
    assert studio.rewards() == [None]
    (failure,) = studio.histories()["task-0/0"].failures
    assert failure.cause == "environment"
    assert "TargetClosedError" in failure.traceback, "the root is kept"
    browsers.assert_gone()


def test_a_page_that_crashes_is_tried_again_in_the_same_browser(browsers):
    crashed = []

    class Unlucky(drawings.Drawing):
        async def _draw(self, browser, svg):
            if svg == SMALLER and not crashed:
                await self._with_a_crash(browser)
            return await super()._draw(browser, svg)

        async def _with_a_crash(self, browser):
            new_context = browser.new_context

            async def doomed(**options):
                browser.new_context = new_context
                context = await new_context(**options)
                context.on("page", lambda page: crashed.append(browsers.kill_renderers()))
                return context

            browser.new_context = doomed

    studio = Studio(SMALLER)
    studio.run(Unlucky())
    assert crashed
    assert crashed[0] > 0
    assert len(browsers.pids) == 1
    assert 0.4 < studio.rewards()[0] < 0.7


def test_a_driver_that_dies_takes_no_row_with_it(browsers):
    class Driverless(drawings.Drawing):
        killed = False

        async def _draw(self, browser, svg):
            if not self.killed:
                self.killed = True
                (driver,) = drivers()
                os.kill(driver, signal.SIGKILL)
            return await super()._draw(browser, svg)

    studio = Studio(CIRCLE, SMALLER)
    asyncio.run(studio.work(Driverless()))
    assert studio.rewards()[0] == 1.0
    assert len(browsers.pids) == 2
    browsers.assert_gone()


# --- the end


def test_the_browser_is_closed_when_the_run_fails(browsers):
    studio = Studio(CIRCLE, CIRCLE)
    studio.policy.answer = lambda request: PolicyRefused("403")
    with pytest.raises(PolicyRefused):
        studio.run()
    browsers.assert_gone()


@pytest.mark.parametrize("moment", ["driver", "browser", "drawing"])
def test_the_browser_is_closed_when_the_run_is_cancelled(browsers, moment):
    """While the browser's driver starts, the browser starts, and rows are drawn."""
    studio, drawing = Studio(*[CIRCLE] * 8), asyncio.Event()
    moments = {
        "driver": lambda: bool(drivers()),
        "browser": lambda: bool(browsers.pids),
        "drawing": drawing.is_set,
    }

    class Watched(drawings.Drawing):
        async def _draw(self, browser, svg):
            drawing.set()
            return await super()._draw(browser, svg)

    async def main():
        work = asyncio.create_task(studio.work(Watched()))
        await until(moments[moment])
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())
    assert not studio.complaints
    browsers.assert_gone()
    assert len(browsers.pids) == 1


def test_a_browser_that_does_not_start_ends_the_run_and_leaves_no_driver(browsers):
    browsers.becomes("exit 7")
    with pytest.raises(holdfast.EnvironmentBroken, match="no browser"):
        Studio(CIRCLE).run()
    browsers.assert_gone()


def test_a_browser_that_is_dead_already_is_closed(browsers):
    async def main():
        processor = drawings.Drawing()
        await processor.acleanup()  # Nothing is there yet.
        await processor.setup()
        browsers.kill()
        await processor.acleanup()
        await processor.acleanup()

    asyncio.run(main())
    browsers.assert_gone()
