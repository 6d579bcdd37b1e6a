"""Drawings that want to do harm, and a driver that is killed: real Chromium, real sockets."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.testing import FakeEngine, Fault, FaultKind
from support.examples.studio import (
    CIRCLE,
    EXAMPLES,
    HEAD,
    SMALLER,
    Studio,
    drawings,
    needs_chromium,
    processes,
    until,
)
from support.processes import wait_until

pytestmark = needs_chromium

# Ten to the eleventh rectangles.
ENDLESS = (
    f'{HEAD}<g id="a0"><rect width="9" height="9"/></g>'
    + "".join(f'<g id="a{i}">' + f'<use href="#a{i - 1}"/>' * 10 + "</g>" for i in range(1, 12))
    + "</svg>"
)
GREEN = '<rect width="100" height="100" fill="lime"/>'
LAUGHS = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
XHTML = 'xmlns="http://www.w3.org/1999/xhtml"'


def hostile(url: str) -> dict[str, str]:
    """By name; none of them shows the circle that is asked for."""
    bodies = {
        "script": f'<script>fetch("{url}/script"); for (;;);</script>{GREEN}',
        "handler": f'<image href="x" onerror="fetch(\'{url}/handler\')"/>{GREEN}',
        "image": f'<image href="{url}/image.png" width="9" height="9"/>{GREEN}',
        "file": f'<image href="file:///etc/passwd" width="100" height="100"/>{GREEN}',
        "use": f'<use href="{url}/use.svg#a"/>{GREEN}',
        "style": f"<style>@import url({url}/style); g {{ fill: url({url}/fill#a) }}</style>{GREEN}",
        "frame": f'<foreignObject width="100" height="100"><img {XHTML} src="{url}/img"/>'
        f'<iframe {XHTML} src="{url}/frame"></iframe></foreignObject>{GREEN}',
        "away": f'<a href="{url}/away"><animate attributeName="href" values="{url}/away"/></a>'
        f'<foreignObject><meta {XHTML} http-equiv="refresh" content="0;url={url}/refresh"/>'
        f"</foreignObject>{GREEN}",
        "moving": '<rect width="100" height="100" fill="lime"><animate attributeName="fill" '
        'values="lime;aqua" dur="1ms" repeatCount="indefinite"/></rect>',
    }
    result = {name: f"{HEAD}{body}</svg>" for name, body in bodies.items()}
    result["huge"] = result["image"].replace("<svg", '<svg width="1000000" height="1000000"')
    result["long"] = f"{HEAD}{GREEN * 2000}</svg>"
    result["deep"] = f"{HEAD}{'<g>' * 9000}{'</g>' * 9000}</svg>"
    result["endless"] = ENDLESS
    return result


@asynccontextmanager
async def listening(requests: list[bytes]):
    """A server on this machine that hears of every request."""

    async def hear(reader, writer):
        requests.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def test_hostile_drawings_reach_nobody_and_cost_only_themselves(browsers):
    requests: list[bytes] = []

    async def main():
        async with listening(requests) as url:
            attacks = list(hostile(url).values())
            studio = Studio(CIRCLE, *attacks, CIRCLE)
            await studio.work(drawings.Drawing(seconds=8.0))
            return studio

    studio = asyncio.run(main())
    assert not requests
    assert not studio.complaints
    assert studio.rewards() == [1.0, *[0.0] * (studio.samples - 2), 1.0]
    assert not any(history.failures for history in studio.histories().values())
    assert len(browsers.pids) == 1
    browsers.assert_gone()


def test_the_same_drawings_reach_out_where_nothing_holds_them_back(browsers):
    """What the test above would hear, if a drawing were a page and not an image."""
    requests: list[bytes] = []
    expected = {b"/frame", b"/img", b"/image.png"}

    def paths() -> set[bytes]:
        return {line.split()[1] for line in requests if line}

    async def main():
        processor = drawings.Drawing()
        try:
            browser = await processor._running()
            async with listening(requests) as url:
                page = await browser.new_page()
                await page.set_content(hostile(url)["frame"] + hostile(url)["image"])
                await until(lambda: paths() >= expected)
        finally:
            await processor.acleanup()

    asyncio.run(main())
    assert paths() == expected


def test_entities_that_multiply_are_not_drawn(browsers):
    bomb = f'<!DOCTYPE svg [<!ENTITY a0 "ha">{LAUGHS}]>{HEAD}{GREEN}<text y="50">&a11;</text></svg>'

    async def main():
        processor = drawings.Drawing()
        try:
            return await processor._picture(bomb), await processor._picture(CIRCLE)
        finally:
            await processor.acleanup()

    laughs, circle = asyncio.run(main())
    assert not laughs
    assert circle
    assert drawings.svg_in(bomb) == bomb[bomb.index("<svg") :], "nor does a reply's own get there"


# --- the command line


LONGER = EXAMPLES / "longer"


def command(place: Path, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "holdfast", "run", str(LONGER / "drawings.py"), "--run", "r"),
        *("--tasks", str(LONGER / "drawings.jsonl"), "--journal", str(place / "journal.db")),
        *("--seed", "1", "--concurrency", "2", "--max-tokens", "200", *arguments),
    ]


def exported(place) -> bytes:
    out = place / "samples.jsonl"
    out.unlink(missing_ok=True)
    arguments = [
        "export",
        "r",
        "--what",
        "samples",
        "--out",
        out,
        "--journal",
        place / "journal.db",
    ]
    subprocess.run([sys.executable, "-m", "holdfast", *arguments], check=True, capture_output=True)
    return out.read_bytes()


@pytest.fixture
def engine():
    with FakeEngine(replies=[CIRCLE, SMALLER, f"{HEAD}{GREEN}</svg>"]) as result:
        yield result


HELD = [Fault(FaultKind.HOLD, matching=f"/{name}/") for name in ("house", "sun", "target")]
"""A run cannot be over before it was disturbed: half of it waits."""


def test_a_driver_that_is_killed_leaves_no_browser_and_its_run_goes_on(browsers, engine, tmp_path):
    environment = os.environ | {"CHROMIUM": str(browsers.script)}
    arguments = command(tmp_path, "--policy", engine.url)
    engine.set_faults(*HELD)
    driver = subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: engine.stats().held == 2, seconds=120)
        assert browsers.processes()
        (helper,) = processes(lambda parent, group: parent == driver.pid)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    wait_until(lambda: not browsers.processes() and not os.path.exists(f"/proc/{helper}"))
    engine.set_faults()
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "6 COMPLETED" in done.stdout
    assert len(browsers.pids) == 2
    browsers.assert_gone()
    assert b'"reward":1.0' in exported(tmp_path)


def test_ctrl_c_stops_the_run_and_closes_the_browser(browsers, engine, tmp_path):
    """It is sent to everything that the terminal has started, the browser's driver too."""
    environment = os.environ | {"CHROMIUM": str(browsers.script)}
    arguments = command(tmp_path, "--policy", engine.url, "--grace", "1")
    engine.set_faults(*HELD)
    driver = subprocess.Popen(
        arguments, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: engine.stats().held == 2, seconds=120)
    os.killpg(driver.pid, signal.SIGINT)
    _, message = driver.communicate(timeout=120)
    assert driver.returncode not in (0, -signal.SIGINT), message
    assert "Error" not in message
    assert not processes(lambda parent, group: group == driver.pid)
    assert len(browsers.pids) == 1
    browsers.assert_gone()


def test_the_example_runs_with_the_embedded_engine(browsers, tmp_path):
    done = subprocess.run(
        command(tmp_path),
        env=os.environ | {"CHROMIUM": str(browsers.script), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "6 COMPLETED" in done.stdout
    assert len(browsers.pids) == 1
    browsers.assert_gone()
