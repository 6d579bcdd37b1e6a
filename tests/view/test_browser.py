"""The pages in a real browser: they run nothing that was said, follow a run, and can be used.

With HOLDFAST_AXE=…/axe.min.js (of npm's axe-core), every page is also checked for people who use a
screen reader.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from holdfast.server_tokens import known_token
from holdfast.testing import FakeEngine
from support.axe import check_accessible
from support.fork_server import Popen
from support.view import CALLS, EVIL, rich_journal, viewing

CHROMIUM = "/usr/bin/chromium"
# Where scripts/system.sh can install it, a browser that is missing is a failure.
INSTALLABLE = os.geteuid() == 0 and shutil.which("apt-get") is not None
pytestmark = pytest.mark.skipif(
    not Path(CHROMIUM).exists() and not INSTALLABLE, reason=f"there is no {CHROMIUM}"
)
PAGES = [
    "/",
    "/run/rich",
    "/run/wide?order=lowest+reward",
    "/run/rich/0/0",
    "/run/rich/2/0",
    "/run/rich/0/0?as=tokens",
    "/run/rich/2/1?as=events",
    "/run/rich/0/0?as=records",
    "/run/rich/0/0/token?step=5&at=3",
    "/run/rich/search?q=alga",
    "/compare?a=wide&b=other",
    "/compare/task?a=wide&b=other&task=task-3",
    "/run/trained/training",
    "/run/trained/step/1",
    "/run/trained/0/0/token?step=0&at=1",
    "/run/none",
]


@pytest.fixture(scope="module")
def viewed(tmp_path_factory):
    with viewing(rich_journal(tmp_path_factory.mktemp("view") / "rich.db")) as server:
        yield server


@pytest.fixture(scope="module")
def browser(viewed):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


class Watched:
    """A page, and everything that it complained of or asked for."""

    def __init__(self, browser, url: str, **options):
        self.url = url
        self.page: Page = browser.new_page(**options)
        self.console: list[str] = []
        self.urls: list[str] = []
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.console.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.urls.append(request.url))

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def close(self, *, is_missing: bool = False) -> None:
        assert self.page.evaluate("window.hurt") is None
        self.page.close()
        wrong = [line for line in self.console if not (is_missing and "404" in line)]
        assert wrong == []
        assert all(url.startswith((self.url, "data:")) for url in self.urls)


@pytest.fixture
def watched(browser, viewed):
    watched = Watched(browser, viewed.url)
    yield watched
    watched.close()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone_in_both_schemes_and_complains_of_nothing(
    browser, viewed, path, scheme
):
    size = {"width": 390, "height": 800}
    watched = Watched(browser, viewed.url, viewport=size, color_scheme=scheme)
    page = watched.open(path)
    expect(page.locator("h1")).to_be_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "nothing but tables and charts scrolls to the side"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(15, 19, 24)" if scheme == "dark" else "rgb(246, 247, 249)")
    check_accessible(page)
    watched.close(is_missing=path == "/run/none")


def test_what_was_said_is_text_whatever_it_is(watched):
    page = watched.open("/run/rich/2/0")
    messages = page.locator(".item pre.said")
    expect(messages.nth(0)).to_have_text(EVIL)
    expect(messages.nth(1)).to_contain_text("␛[31mred␛[0m ⟨U+202E⟩turned⟨U+202C⟩ שלום")
    assert page.locator("main img, main script, main svg").count() == 0
    page = watched.open("/run/rich/2/1?as=events")
    expect(page.locator("pre.code").first).to_contain_text(EVIL)
    page = watched.open("/run/rich")
    expect(page.locator("#rows")).to_contain_text(EVIL)
    page = watched.open("/run/rich/2/0?as=tokens")
    assert page.locator(".tokens a").count() == len(EVIL)
    page = watched.open("/run/rich/3/1")
    expect(page.locator("a.more")).to_contain_text(f"and {CALLS - 40:,} more calls")
    page.locator("a.more").click()
    expect(page.locator("pre.said").last).to_contain_text('look_up({"n": 40})')


def test_a_long_text_is_unfolded_in_place(watched):
    page = watched.open("/run/rich/3/0")
    page.locator("a.more").click()
    expect(page.locator("a.more")).to_contain_text("1,936,000 characters are left")
    assert page.locator("pre.said").last.evaluate("e => e.textContent.length") == 60_000


def test_filters_and_order_choose_trajectories(watched):
    page = watched.open("/run/rich")
    page.select_option("[name=state]", "failed")
    expect(page.locator("#count")).to_have_text("3 trajectories")
    page.get_by_role("link", name="everything").click()
    page.fill("[name=low]", "0.3")
    page.fill("[name=high]", "0.6")
    page.get_by_role("button", name="filter").click()
    expect(page.locator("#count")).to_have_text("3 trajectories")
    assert "high=0.6" in page.url
    assert "text=" not in page.url, "a link has only what was chosen"
    page = watched.open("/run/wide")
    page.select_option("[name=order]", "highest reward")
    expect(page.locator("#rows tbody td").nth(1)).to_have_text("1")
    page.get_by_label("Pages of trajectories").get_by_role("link", name="next").click()
    expect(page.locator("#rows tbody tr")).to_have_count(100)


def test_a_square_and_a_bar_lead_to_their_trajectories(watched):
    page = watched.open("/run/rich")
    page.get_by_role("link", name="sea/1: failed").click()
    expect(page.locator("h1")).to_have_text("rich/sea/1")
    page = watched.open("/run/rich")
    page.get_by_role("link", name="0.25: 1").click()
    expect(page.locator("#count")).to_have_text("1 trajectory")
    page = watched.open("/run/rich")
    page.locator("#failures summary").first.click()
    expect(page.locator("#failures pre").first).to_contain_text("Traceback")
    page.locator("#failures").get_by_role("link", name="all of them").first.click()
    expect(page.locator("#count")).to_contain_text("with the root")


def test_the_keyboard_is_enough(watched):
    page = watched.open("/run/rich/0/0")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("#m1")).to_be_focused()
    expect(page.get_by_text("What is kelp?")).to_be_hidden()
    page.keyboard.press("f")
    expect(page.get_by_text("What is kelp?")).to_be_visible()
    page.keyboard.press("k")
    expect(page.locator("#m0")).to_be_focused()
    page = watched.open("/")
    page.keyboard.press("/")
    page.keyboard.type("wide")
    assert page.locator("[data-search]").input_value() == "wide"
    page.keyboard.press("Enter")
    expect(page.locator(".runs > li")).to_have_count(1)
    page.wait_for_load_state()  # Keys pressed before the new page's script runs would be lost.
    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page.locator("h1")).to_have_text("wide")


def test_a_search_goes_on_until_its_end(watched):
    page = watched.open("/run/rich/search")
    page.fill("[name=q]", "ALGA")
    page.get_by_role("button", name="search").click()
    expect(page.locator("#hits > *")).to_have_count(3)
    expect(page.locator("mark").first).to_have_text("alga")
    page = watched.open("/run/wide/search?q=reply")
    page.get_by_role("button", name="search on until stopped").click()
    expect(page.locator("#hits > *")).to_have_count(300)
    expect(page.locator("#scan")).to_contain_text("That was the last part.")


def test_a_token_leads_to_why_and_two_runs_to_their_first_difference(watched):
    page = watched.open("/run/rich/0/0?as=tokens")
    page.locator(".tokens a").nth(4).click()
    expect(page.locator("h1")).to_have_text("Why this token")
    expect(page.locator("main")).to_contain_text("Nothing consumes this run")
    page = watched.open("/compare/task?a=rich&b=rich&task=long&sa=0&sb=3")
    expect(page.locator("main")).to_contain_text("They first differ at message 2")


def test_more_than_two_runs_are_compared(watched):
    page = watched.open("/compare?a=wide&b=wide")
    page.select_option("main select[name=b]", "other")
    page.get_by_role("button", name="add").click()
    rows = page.get_by_role("region", name="Runs").locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("0, 0, 150")
    expect(rows.nth(1)).to_contain_text("+0.000 ± 0.025")
    cells = page.get_by_role("region", name="Tasks").locator("tbody tr").first.locator("td")
    expect(cells).to_have_text(["do task-103", "0.875", "0.875", "+0", "0.5", "-0.375"])
    page.get_by_role("link", name="-0.375: side by side").first.click()
    expect(page.locator("h1")).to_have_text("task-103, side by side")


def test_a_place_that_was_found_leads_to_its_step(watched):
    page = watched.open("/run/rich/search?q=turn+700+words")
    page.locator("#hits a").click()
    assert page.url.endswith("/run/rich/3/2?step=700#step-700")
    expect(page.locator("#step-700")).to_be_in_viewport()


def test_the_page_that_has_the_token_tags_a_run_and_no_address_shows_it(browser, viewed):
    watched = Watched(browser, viewed.url)
    token = known_token(viewed.url)
    page = watched.open(f"/run/other#token={token}")
    expect(page.locator("h1")).to_have_text("other")
    assert page.url == f"{viewed.url}/run/other"
    page.fill("[name=add]", "seen <b>")
    page.get_by_role("button", name="change tags").click()
    expect(page.locator("#head .tag").nth(1)).to_have_text("seen <b>")
    assert not any(token in url.partition("#")[0] for url in watched.urls)
    watched.close()


ROLLOUT = """
import asyncio
from pathlib import Path
import holdfast


async def solve(t: holdfast.Rollout) -> float:
    while int(t.task.id[1:]) >= 70 and not Path("watched").exists():
        await asyncio.sleep(0.1)
    t.add(*t.task.messages)
    for _ in range(3):
        await t.generate()
        await asyncio.sleep(0.1)
        t.add("and then?")
    if t.task.id.endswith("7") and t.key.sample == 0:
        raise KeyError("a bug")
    return float(t.key.sample % 2)
"""
TASKS = 125
LIVE = [
    ("/", "#runs .badge", "finished"),
    ("/run/live/0/0", "#head .badge", "completed"),
    ("/run/live/1/1?as=tokens", "#head .badge", "completed"),
    ("/run/live/2/0?as=events", "#head .badge", "completed"),
    ("/run/live?state=failed&order=slowest", "#count", "12 trajectories"),
]
"""Pages that are open during the run, and what each shows in the end."""


def test_a_page_follows_a_run_of_500_trajectories_that_is_killed_and_resumed(browser, tmp_path):
    (tmp_path / "slow.py").write_text(ROLLOUT)
    lines = [f'{{"id": "q{n}", "prompt": "question {n}"}}\n' for n in range(TASKS)]
    (tmp_path / "tasks.jsonl").write_text("".join(lines))
    with FakeEngine(replies=["a reply"]) as engine:
        arguments = ("run", "slow.py", "--tasks", "tasks.jsonl", "--samples", "4", "--run", "live")
        more = ("--policy", engine.url, "--journal", "live.db", "--quiet")
        command = [sys.executable, "-m", "holdfast", *arguments, *more]

        def begin() -> "subprocess.Popen[bytes]":
            return Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, env=dict(os.environ))

        process = begin()
        while not (tmp_path / "live.db").exists():
            assert process.poll() is None
        with viewing(tmp_path / "live.db") as server:
            others = [Watched(browser, server.url) for _ in LIVE]
            watched = Watched(browser, server.url)
            page = watched.open("/run/live")
            for other, (path, _, _) in zip(others, LIVE, strict=True):
                other.open(path)
            page.locator("#rows .badge.completed").first.wait_for(timeout=60_000)
            process.send_signal(signal.SIGKILL)
            process.wait()
            expect(page.locator("#head .badge")).to_have_text("stopped", timeout=60_000)
            expect(page.locator("#head code")).to_contain_text("holdfast resume live")
            process = begin()
            expect(page.locator("#head .badge")).to_have_text("working", timeout=60_000)
            expect(page.locator("#heat")).to_contain_text("Tasks 61 to 120", timeout=120_000)
            (tmp_path / "watched").touch()  # No more than 70 tasks are over before.
            expect(page.locator("#head .badge")).to_have_text("finished", timeout=120_000)
            expect(page.locator("#head")).to_contain_text("500 of 500 trajectories are settled")
            expect(page.locator("#numbers a[href*='state=failed']")).to_have_text("12")
            expect(page.locator("#failures")).to_contain_text("KeyError: 'a bug'")
            assert process.wait(60) == 0
            for other, (_, place, text) in zip(others, LIVE, strict=True):
                expect(other.page.locator(place)).to_have_text(text, timeout=60_000)
            for each in (watched, *others):
                each.close()
