"""A trajectory is forked from its page, by whom has the server's token, and by nobody else."""

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import expect, sync_playwright

from holdfast.server_tokens import known_token
from holdfast.testing import FakeEngine
from support.axe import check_accessible
from support.cli.shell import CommandLine
from support.view import Viewed, viewing

CHROMIUM = "/usr/bin/chromium"
INSTALLABLE = os.geteuid() == 0 and shutil.which("apt-get") is not None
PATH = "/run/r/0/0/fork"


@pytest.fixture(scope="module")
def shell(tmp_path_factory) -> Iterator[CommandLine]:
    with FakeEngine(mean_length=10) as engine:
        shell = CommandLine(tmp_path_factory.mktemp("forks"), engine)
        shell.finished_run()
        yield shell


@pytest.fixture(scope="module")
def viewed(shell: CommandLine) -> Iterator[Viewed]:
    with viewing(shell.journal) as server:
        yield server


def runs(shell: CommandLine) -> list[str]:
    return shell.holdfast("runs", "--names").out.split()


def test_only_the_token_and_the_servers_own_page_can_fork(shell, viewed) -> None:
    token = {"Authorization": f"Bearer {known_token(viewed.url)}"}
    body = {"at": "2", "samples": "1"}
    before = shell.recorded()
    assert viewed.post(PATH, body)[0] == 401
    assert viewed.post(PATH, body, Authorization="Bearer wrong")[0] == 401
    assert viewed.post(PATH, body, Origin="http://evil.example", **token)[0] == 403
    assert viewed.post(PATH, body, **{"Sec-Fetch-Site": "cross-site"}, **token)[0] == 403
    assert viewed.post(PATH, body, Host="evil.example", **token)[0] == 403
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert viewed.post(PATH, b"at=2", **form, **token)[0] == 415
    assert viewed.post(PATH, {"at": 2, "more": 1}, **token)[0] == 400
    assert viewed.get(PATH)[0] in (404, 405)
    assert shell.recorded() == before


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"at": "9"}, "has no step '9'"),
        ({"at": "1"}, "is tool look_up"),
        ({"at": "0", "say": "a", "edit": "b"}, "give one of them"),
        ({"at": "0", "samples": 0}, "--samples: must be 1 or more"),
    ],
)
def test_a_fork_that_cannot_be_is_said_in_one_line(shell, viewed, body, line) -> None:
    token = {"Authorization": f"Bearer {known_token(viewed.url)}"}
    before = shell.recorded()
    status, answer = viewed.post(PATH, body, **token)
    assert status == 404
    error = json.loads(answer)["error"]
    assert line in error
    assert "\n" not in error
    assert shell.recorded() == before


IN_BROWSER = pytest.mark.skipif(
    not Path(CHROMIUM).exists() and not INSTALLABLE, reason=f"there is no {CHROMIUM}"
)


@IN_BROWSER
def test_a_page_of_another_origin_cannot_fork_even_with_the_token(shell, viewed, tmp_path) -> None:
    (tmp_path / "index.html").write_text("<h1>evil</h1>")
    before = shell.recorded()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as evil, sync_playwright() as playwright:
        Thread(target=evil.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{evil.server_port}/index.html")
        token = {"Authorization": f"Bearer {known_token(viewed.url)}"}
        for options in (
            {"headers": {"Content-Type": "application/json"} | token},
            {"headers": {"Content-Type": "text/plain"}, "mode": "no-cors"},
        ):
            order = {"method": "POST", "body": json.dumps({"at": "2"})} | options
            answer = page.evaluate(
                "([url, order]) => fetch(url, order).then(a => a.status, e => String(e))",
                [viewed.url + PATH, order],
            )
            assert answer in (0, "TypeError: Failed to fetch")
        browser.close()
        evil.shutdown()
    assert shell.recorded() == before


@IN_BROWSER
def test_the_button_of_a_page_forks_and_leads_to_the_new_run(shell, viewed) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport={"width": 390, "height": 800})
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{viewed.url}/run/r/0/0#token={known_token(viewed.url)}")
        page.locator("li.item", has_text="step 2").get_by_role("button", name="fork").click()
        assert page.locator("[name=at]").input_value() == "2"
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            check_accessible(page)
        page.get_by_label("say this before the turn").fill("<b>Check</b> the units.")
        page.get_by_label("samples").fill("3")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("button", name="sample").click()
        page.wait_for_url("**/run/r-fork", timeout=120_000)
        expect(page.locator("#head .badge")).to_have_text("finished", timeout=60_000)
        expect(page.locator("#head")).to_contain_text("forked from r/sum/0 at step 2")
        expect(page.locator("#head")).to_contain_text("3 of 3 trajectories are settled")
        page.goto(f"{viewed.url}/run/r-fork/0/1")
        expect(page.locator("pre.said", has_text="<b>Check</b> the units.")).to_be_visible()
        page.get_by_role("link", name="side by side").click()
        expect(page.locator(".sides h2")).to_have_text(["r/sum/0", "r-fork/sum/1"])
        page.go_back()
        page.get_by_role("link", name="forked from r/sum/0").click()
        expect(page.locator("#main")).to_contain_text("Forks of this trajectory: r-fork at step 2")
        browser.close()
    assert wrong == []
    assert runs(shell) == ["r", "r-fork"]
    assert "<b>Check</b> the units." in shell.export("trajectories", run="r-fork").decode()
