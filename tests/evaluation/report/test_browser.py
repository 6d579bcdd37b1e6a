"""The report in a real browser: it opens from a file, asks for nothing, and can be worked with."""

import asyncio
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from holdfast.evaluation.report.writer import write_report
from holdfast.evaluation.stats.results import results_of
from holdfast.evaluation.stats.verdict import Threshold, verdict_of
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import assistant, user
from support.evaluation.graded_runs import failed, scored, truncated, with_tools, write
from support.records import generated, spec
from support.training import batches_of, rolled_out

CHROMIUM = "/usr/bin/chromium"
# Where scripts/system.sh can install it, a browser that is missing is a failure.
INSTALLABLE = os.geteuid() == 0 and shutil.which("apt-get") is not None
pytestmark = pytest.mark.skipif(
    not Path(CHROMIUM).exists() and not INSTALLABLE, reason=f"there is no {CHROMIUM}"
)

EVIL = "</script><img src=x onerror=\"window.hurt=1;alert('x')\"><svg onload=alert(2)>"
TASKS = {
    "kelp": [with_tools(1.0), with_tools(0.0)],
    "sea": [truncated(0.5), failed()],
    "quote": [
        scored(
            1.0, generated("0", added=("task:0",), message=assistant('say "x < y"\nthen Ünder'))
        ),
        scored(0.25),
    ],
}


def write_page(path: Path, tasks, *, name: str = "r", model: str = "model", **options) -> Path:
    async def written() -> None:
        journal = MemoryJournal()
        made = msgspec.structs.replace(
            spec(name, samples=len(next(iter(tasks.values())))), model=model
        )
        run = await write(journal, made, tasks)
        verdict = verdict_of(await results_of(journal, run), threshold=Threshold(0.9))
        await write_report(journal, run, path, verdict=verdict, **options)

    asyncio.run(written())
    return path


class Watched:
    """A page, and everything that it complained of or asked for."""

    def __init__(self, page: Page):
        self.page = page
        self.console: list[str] = []
        self.urls: list[str] = []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("dialog", lambda dialog: (self.console.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: self.urls.append(request.url))

    def open(self, path: Path) -> Page:
        self.page.goto(path.as_uri())
        expect(self.page.locator("#count")).to_have_text("6 of 6 rows")
        return self.page


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory, browser):
    # The file is written by another thread: this one has the loop of the browser's driver.
    place = tmp_path_factory.mktemp("report") / "r.html"
    return in_a_thread(lambda: write_page(place, TASKS, decode=ByteRenderer().decode))


def in_a_thread(work):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


@pytest.fixture
def watched(browser):
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    yield Watched(page)
    page.close()


@pytest.fixture
def page(watched, path):
    page = watched.open(path)
    yield page
    assert watched.console == []


def names(page: Page) -> list[str]:
    return page.locator("#list .id").all_inner_texts()


def search(page: Page, text: str, result: int) -> None:
    page.fill("#search", text)
    expect(page.locator("#count")).to_have_text(f"{result} of 6 rows")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_from_a_file_and_asks_for_nothing_else(browser, path, scheme):
    page = browser.new_page(color_scheme=scheme)
    watched = Watched(page)
    watched.open(path)
    assert watched.urls == [path.as_uri()]
    assert watched.console == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(15, 19, 24)" if scheme == "dark" else "rgb(246, 247, 249)")
    page.close()


def test_the_overview_tells_score_verdict_failures_and_distributions(page):
    expect(page.locator("h1")).to_have_text("r")
    expect(page.locator("#top strong")).to_have_text("0.5500")
    expect(page.locator("#top .badge")).to_have_text("failed")
    expect(page.locator("#top")).to_contain_text("is below the threshold of 0.9")
    overview = page.locator("#overview")
    expect(overview).to_contain_text("1 × ConnectionError: port 8013 refused")
    expect(overview).to_contain_text("max_turns")
    assert page.locator("svg .bar").count() >= 4
    expect(overview.locator("details pre")).to_be_hidden()
    overview.locator("summary").click()
    expect(overview.locator("details pre")).to_contain_text("Traceback (most recent call last)")


def test_a_conversation_is_readable_and_its_tool_calls_fold(page):
    items = page.locator("#items")
    expect(items).to_contain_text("do kelp")
    expect(items).to_contain_text("Élan: an alga 🌊 with <b>roots</b>.")
    result = items.get_by_text("Kelp is a large brown alga.", exact=True)
    expect(result).to_be_hidden()
    items.get_by_text('{"word": "kelp", "deep": true} →').click()
    expect(result).to_be_visible()
    expect(items.locator(".tool pre").first).to_have_text('{\n  "word": "kelp",\n  "deep": true\n}')
    expect(items.get_by_text("What is kelp?")).to_be_hidden()
    page.keyboard.press("o")
    expect(items.get_by_text("What is kelp?")).to_be_visible()
    expect(items.get_by_text("You see a holdfast.", exact=True)).to_be_visible()
    page.keyboard.press("o")
    expect(result).to_be_hidden()


def test_tokens_are_coloured_by_logprob_when_asked(page):
    assert page.locator(".tokens").count() == 0
    page.keyboard.press("t")
    expect(page.locator(".tokens").nth(1)).to_have_text("Élan: an alga 🌊")
    spans = page.locator(".tokens").nth(1).locator("span")
    colours = {
        spans.nth(place).evaluate("e => getComputedStyle(e).backgroundColor")
        for place in range(spans.count())
    }
    assert len(colours) >= 5
    assert spans.nth(0).get_attribute("title") == '"É"\nlogprob -0.030, p 0.970, 2 tokens'
    levels = [spans.nth(place).get_attribute("class") for place in range(7)]
    assert levels == ["lp0", "lp1", "lp2", "lp3", "lp4", "lp5", "lp0"]
    page.click("#tokens")
    assert page.locator(".tokens").count() == 0


QUERIES = {
    "kelp": 2,  # ids and conversations
    'say "x < y"': 1,
    "ünder": 1,
    "8013 refused": 1,
    "max_turns": 1,
    "nothing of the kind": 0,
    "matoe": 0,  # the letters of the data are not text
}


def test_search_finds_what_was_said(page):
    for query, result in QUERIES.items():
        search(page, query, result)
        if not result:
            expect(page.locator("#list")).to_have_text("No row is like that.")


def test_what_was_searched_for_is_marked_wherever_it_is_folded_away(page):
    search(page, "A HOLDFAST", 2)
    expect(page.locator("#items mark")).to_have_text(["a holdfast"])
    expect(page.locator("#items mark")).to_be_visible()


def test_rows_are_filtered_by_status_score_and_kind_and_ordered(page):
    page.select_option("#status", "FAILED")
    expect(page.locator("#list .id")).to_have_text(["sea/1"])
    page.click("button[type=reset]")
    expect(page.locator("#count")).to_have_text("6 of 6 rows")
    page.fill("#low", "0.3")
    page.fill("#high", "0.9")
    expect(page.locator("#list .id")).to_have_text(["sea/0"])
    page.click("button[type=reset]")
    page.select_option("#only", "without a score")
    expect(page.locator("#list .id")).to_have_text(["sea/1"])
    page.click("button[type=reset]")
    page.select_option("#order", "lowest score")
    expect(page.locator("#list .id").first).to_have_text("kelp/1")
    expect(page.locator("#list .id").last).to_have_text("sea/1")


def test_a_bar_of_the_scores_shows_its_rows(page):
    page.get_by_role("button", name="0.25: 1").press("Enter")
    expect(page.locator("#list .id")).to_have_text(["quote/1"])


def test_the_keyboard_is_enough(page):
    page.keyboard.press("j")
    expect(page.locator("#detail h3")).to_have_text("kelp/1")
    page.keyboard.press("k")
    expect(page.locator("#detail h3")).to_have_text("kelp/0")
    page.keyboard.press("/")
    page.keyboard.type("sea/1")
    expect(page.locator("#list .id")).to_have_text(["sea/1"])
    assert page.locator("#search").input_value() == "sea/1", "a letter that is typed is no command"
    page.keyboard.press("Escape")
    before = page.evaluate("getComputedStyle(document.documentElement).colorScheme")
    page.keyboard.press("d")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") != before


def test_what_is_slow_or_failed_is_one_click_away(page):
    page.locator("#overview .link", has_text="kelp/1").first.click()
    expect(page.locator("#detail h3")).to_have_text("kelp/1")
    page.locator("#overview summary").click()
    page.locator("#overview .root .link").click()
    expect(page.locator("#detail h3")).to_have_text("sea/1")
    expect(page.locator("#items .failure")).to_contain_text("ConnectionError: port 8013 refused")


def test_what_comes_from_outside_does_nothing(watched, tmp_path):
    broken = msgspec.structs.replace(
        failed().records[1].failure, message=EVIL, traceback=EVIL, type="E"
    )
    talk = with_tools()
    hurt = [
        msgspec.structs.replace(record, name=EVIL) if hasattr(record, "call_id") else record
        for record in talk.records
    ]
    scored_row = scored(
        0.5,
        generated("0", added=(user(EVIL),), message=assistant(EVIL), ids=list(EVIL.encode())),
        metrics={EVIL: 1.0},
        reasons={EVIL: EVIL},
    )
    tasks = {
        EVIL: [scored_row, failed(broken)],
        "b": [talk._replace(records=hurt), truncated(1.0, EVIL)],
        "c": [scored(1.0)] * 2,
    }
    name = EVIL.replace("/", "")
    options = {"name": name, "model": EVIL, "source": EVIL, "decode": ByteRenderer().decode}
    made = in_a_thread(lambda: write_page(tmp_path / "evil.html", tasks, **options))
    page = watched.open(made)
    expect(page.locator("h1")).to_have_text(name)
    assert page.title() == f"{name} · Holdfast"
    for _ in range(4):
        page.keyboard.press("o")
        page.keyboard.press("t")
        page.keyboard.press("t")
        page.keyboard.press("j")
    search(page, EVIL, 4)
    expect(page.locator("#items mark").first).to_have_text(EVIL)
    page.locator("#overview summary").click()
    assert page.evaluate("window.hurt") is None
    assert page.locator("img").count() == 0
    assert watched.console == []
    assert watched.urls == [made.as_uri()]


def test_a_conversation_that_is_left_out_says_how_to_see_it(watched, tmp_path):
    made = in_a_thread(lambda: write_page(tmp_path / "r.html", TASKS, limit=10, source="j.db"))
    page = watched.open(made)
    expect(page.locator("#items")).to_contain_text("holdfast show 'r' 'kelp/0' --journal j.db")
    assert watched.console == []


def test_five_thousand_rows_do_not_freeze_it(watched, tmp_path):
    talk, short = with_tools(1.0), scored(0.5)
    tasks = {
        f"task-{place:02}": [talk if sample % 9 else short for sample in range(100)]
        for place in range(50)
    }
    made = in_a_thread(lambda: write_page(tmp_path / "large.html", tasks))
    page = watched.page
    page.goto(made.as_uri())
    expect(page.locator("#count")).to_have_text("5,000 of 5,000 rows")
    assert page.locator("#list button").count() <= 450, "what is not seen is not drawn"
    page.fill("#search", "brown alga")
    expect(page.locator("#count")).to_have_text("4,400 of 5,000 rows")
    page.fill("#search", "task-49/99")
    expect(page.locator("#list .id")).to_have_text(["task-49/99"])
    page.click("button[type=reset]")
    expect(page.locator("#count")).to_have_text("5,000 of 5,000 rows")
    page.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    expect(page.locator("#list button").nth(300)).to_be_attached()
    assert watched.console == []


def test_a_training_has_its_learning_curve(watched, tmp_path):
    async def write_training() -> None:
        async with rolled_out(lambda task: [0.0, 1.0, 1.0], samples=3) as (journal, consumer, rows):
            batches = batches_of(journal, consumer, rows, groups=1)
            for step in (1, 2):
                await journal.publish_version(consumer.run, f"v{step}", step=step - 1, digest="d")
                await batches.of_step(step)
                await journal.commit(consumer, step)
            await write_report(journal, consumer.run, tmp_path / "r.html")

    in_a_thread(lambda: asyncio.run(write_training()))
    page = watched.open(tmp_path / "r.html")
    expect(page.locator("#overview")).to_contain_text("Training (trainer)")
    expect(page.locator("#overview")).to_contain_text("weight versions")
    assert page.locator("svg .dot title").all_text_contents() == [
        "training, step 1: 0.667",
        "training, step 2: 0.667",
    ]
    assert watched.console == []


# --- rows, links and markdown

MARKED = """# Title

Some **bold** and `code`, a [link](https://example.org/x?a=1)
and <b onclick="window.hurt=1">tags</b>.

- one
  - two

```js
window.hurt = 1; <script>alert(1)</script>
```

> quoted ![image](https://example.org/i.png)
"""


@pytest.fixture(scope="module")
def marked_path(tmp_path_factory, browser):
    place = tmp_path_factory.mktemp("report") / "marked.html"
    scored_row = scored(1.0, generated("0", added=("task:0",), message=assistant(MARKED)))
    tasks = {"first": [scored_row, scored(0.0)], "a/b #2": [scored(0.5), scored(0.25)]}
    return in_a_thread(lambda: write_page(place, tasks))


@pytest.fixture
def marked_page(watched, marked_path):
    watched.page.goto(marked_path.as_uri())
    expect(watched.page.locator("#count")).to_have_text("4 of 4 rows")
    yield watched.page
    assert watched.console == []
    assert watched.urls == [marked_path.as_uri()]
    assert watched.page.evaluate("window.hurt") is None


def test_rows_are_under_their_task_with_input_and_answer(marked_page):
    heads = marked_page.locator("#list .task")
    expect(heads).to_have_count(2)
    assert heads.nth(0).locator("b").inner_text() == "first"
    assert heads.nth(0).locator(".mean").inner_text() == "0.5"
    assert heads.nth(0).locator(".input").inner_text().startswith("input do first")
    answer = marked_page.locator("#list .row").nth(0).locator(".answer").inner_text()
    assert answer.startswith("answer # Title Some **bold**")
    # In another order, samples of one task are apart, and each row has its own input.
    marked_page.select_option("#order", "highest score")
    expect(heads).to_have_count(0)
    expect(marked_page.locator("#list .row .input")).to_have_count(4)


def test_each_row_has_a_link(marked_page, marked_path, browser):
    marked_page.locator("#list .row").nth(3).click()
    href = marked_page.locator(".head h3 a").get_attribute("href")
    assert marked_page.url == f"{marked_path.as_uri()}{href}"
    other = browser.new_page()
    other.goto(f"{marked_path.as_uri()}{href}")
    expect(other.locator(".head h3")).to_have_text("a/b #2/1")
    other.evaluate("location.hash = '#first/0'")
    expect(other.locator(".head h3")).to_have_text("first/0")
    other.close()


def test_markdown_is_drawn_and_nothing_in_it_is_run_or_asked_for(marked_page):
    message = marked_page.locator("#items .markdown")
    expect(message).to_have_count(1)
    assert message.locator("h5.h1").inner_text() == "Title"
    assert message.locator("p b").inner_text() == "bold"
    assert message.locator("p code").inner_text() == "code"
    assert message.locator("li").all_inner_texts() == ["• one", "• two"]
    assert "<script>alert(1)</script>" in message.locator("pre.code").inner_text()
    assert '<b onclick="window.hurt=1">tags</b>' in message.inner_text()
    assert message.locator("a, img, script, [onclick]").count() == 0
    assert "(https://example.org/x?a=1)" in message.inner_text()
    marked_page.keyboard.press("m")
    expect(message).to_have_count(0)
    assert MARKED.strip() in marked_page.locator("#items pre.said").last.inner_text()


def test_what_is_searched_for_is_marked_in_markdown(marked_page):
    marked_page.fill("#search", "bold")
    expect(marked_page.locator("#items .markdown mark")).to_have_text(["bold"])
