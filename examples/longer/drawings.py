"""Drawings: the policy writes SVG, and one headless Chromium shows what it looks like.

    holdfast run examples/longer/drawings.py --tasks examples/longer/drawings.jsonl --run drawings

All rows share the browser: it is started once, again when it dies, and always closed. The reward
is how much nearer a drawing comes to the task's own one than an empty sheet does, from 0 to 1.
Needs Chromium (Debian's, or the one that $CHROMIUM names) and `pip install playwright pillow`.
"""

import asyncio
import base64
import io
import os

from PIL import Image, ImageChops, ImageStat
from playwright.async_api import Browser, Error, Playwright, async_playwright

import holdfast

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
LONGEST, AT_ONCE, TRIES, CLOSING = 64_000, 4, 2, 60.0
EMPTY = '<svg xmlns="http://www.w3.org/2000/svg"/>'
# Shown as an image, an SVG runs no script and loads nothing from outside, whatever it says.
PAGE = """<!doctype html><style>body { margin: 0 }</style>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:">
<img width="128" height="128" decoding="sync" src="data:image/svg+xml;base64,%s">"""


class Drawing(holdfast.RolloutProcessor):
    def __init__(self, *, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._lock = asyncio.Lock()
        self._places = asyncio.Semaphore(AT_ONCE)
        self._wanted: dict[str, bytes] = {}

    # --- one browser for all rows

    async def setup(self) -> None:
        await self._running()

    async def acleanup(self) -> None:
        async with self._lock:
            await self._stop()

    async def _running(self, *, dead: Browser | None = None) -> Browser:
        """The browser; a new one if it is `dead`, and the same new one for all who say so."""
        # A row may be cancelled while it waits here; a start that is cut in half leaks a process.
        return await asyncio.shield(asyncio.create_task(self._start(dead), name="chromium"))

    async def _start(self, dead: Browser | None) -> Browser:
        async with self._lock:
            if self._browser is None or self._browser is dead:
                await self._stop()
                self._playwright = await async_playwright().start()
                try:
                    self._browser = await self._playwright.chromium.launch(
                        executable_path=CHROMIUM,
                        args=["--disable-gpu"],
                        chromium_sandbox=os.geteuid() != 0,  # Root cannot have Chromium's own.
                        handle_sigint=False,  # Ctrl-C is for the run, which closes the browser.
                    )
                except Error as error:
                    raise holdfast.EnvironmentBroken(f"no browser: {error}") from error
            return self._browser

    async def _stop(self) -> None:
        playwright, self._playwright, self._browser = self._playwright, None, None
        if playwright is not None:
            async with asyncio.timeout(CLOSING):
                await playwright.stop()  # Closes the browser, and kills one that does not answer.

    # --- one drawing

    async def rollout(self, t: holdfast.Rollout) -> float:
        t.add(*t.task.messages)
        svg = svg_in((await t.generate()).text)
        if svg is None:
            return 0.0
        return await t.value(lambda: self._likeness(svg, str(t.task.ground_truth)), name="likeness")

    async def _likeness(self, svg: str, wanted: str) -> float:
        model = self._wanted.get(wanted) or await self._picture(wanted)
        farthest = _distance(model, b"")
        if not farthest:
            raise ValueError(f"the task's ground_truth shows nothing: {wanted[:80]!r}")
        self._wanted[wanted] = model
        return max(0.0, 1 - _distance(model, await self._picture(svg)) / farthest)

    async def _picture(self, svg: str) -> bytes:
        """A PNG; b"" if there is nothing to see. Who is at fault when it fails, the browser tells:
        if it still draws an empty sheet, it was the drawing."""
        dead: Browser | None = None
        for _ in range(TRIES):
            browser = await self._running(dead=dead)
            try:
                return await self._draw(browser, svg)
            except (Error, TimeoutError) as error:
                failure, dead = error, None if await self._draws(browser) else browser
        if dead is not None:
            raise holdfast.EnvironmentBroken(f"Chromium died {TRIES} times") from failure
        return b""

    async def _draws(self, browser: Browser) -> bool:
        try:
            return bool(await self._draw(browser, EMPTY))
        except (Error, TimeoutError):
            return False

    async def _draw(self, browser: Browser, svg: str) -> bytes:
        async with self._places, asyncio.timeout(self._seconds):
            context = await browser.new_context(
                java_script_enabled=False, offline=True, viewport={"width": 128, "height": 128}
            )
            try:
                page = await context.new_page()
                await page.set_content(PAGE % base64.b64encode(svg.encode()).decode())
                is_image = await page.evaluate("document.images[0].naturalWidth > 0")
                return await page.screenshot() if is_image else b""
            finally:
                async with asyncio.timeout(self._seconds):
                    await context.close()


def svg_in(text: str) -> str | None:
    start, end = text.find("<svg"), text.rfind("</svg>")
    return text[start : end + len("</svg>")] if 0 <= start < end < start + LONGEST else None


def _distance(one: bytes, two: bytes) -> float:
    return sum(ImageStat.Stat(ImageChops.difference(_pixels(one), _pixels(two))).mean)


def _pixels(png: bytes) -> Image.Image:
    sheet = Image.new("RGB", (128, 128), "white")
    return Image.open(io.BytesIO(png), formats=["PNG"]).convert("RGB") if png else sheet
