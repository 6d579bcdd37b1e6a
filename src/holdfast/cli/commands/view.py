"""`holdfast view`: serves the pages of a journal until it is stopped."""

import argparse
import asyncio
import os
import signal
import tempfile
import webbrowser
from contextlib import suppress
from pathlib import Path

from holdfast.cli.commands.pipeline import end_with_stdin
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.text import notify
from holdfast.engine.export.prices import chosen_prices
from holdfast.extras import needed_by
from holdfast.journal.sql.find_run import run_named
from holdfast.private_files import private_folder
from holdfast.records.errors import JournalError, UsageError
from holdfast.records.exit_codes import Exit

WAIT_SECONDS = 0.3


async def view(args: argparse.Namespace) -> int:
    with needed_by("holdfast view", extra="view"):
        import jinja2  # noqa: F401 - Whether it is there.
    if args.until_stdin_closes:
        end_with_stdin()
        await _wait_for(args.journal)
    return await _serve(args, await _check(args))


async def _check(args: argparse.Namespace) -> str:
    """Returns the path of the first page. Raises an error if the journal or the run does not
    exist."""
    from holdfast.view.rendering import run_url

    async with to_read(args.journal) as journal:
        if args.run is not None:
            return run_url((await run_named(journal, args.run)).spec.name)
        await journal.runs()
        return "/"


async def _serve(args: argparse.Namespace, path: str) -> Exit:
    from holdfast.view.http.server import PORT, serving

    stopped = _until_stopped()
    async with serving(
        args.journal,
        port=PORT if args.port is None else args.port,
        any_port=args.until_stdin_closes,
        prices=chosen_prices(args.price),
        tokenizer=args.tokenizer,
    ) as (url, token):
        notify(f"{url}{path}".removesuffix("/"))
        if args.open:
            _open(f"{url}{path}", token)
        await stopped.wait()
    return Exit.OK


async def _wait_for(where: str) -> None:
    """Waits until the journal exists. The command that runs beside this one creates it."""
    while True:
        with suppress(JournalError, UsageError):
            async with to_read(where) as journal:
                await journal.runs()
                return
        await asyncio.sleep(WAIT_SECONDS)


def _until_stopped() -> asyncio.Event:
    """Returns an event that SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _open(url: str, token: str) -> None:
    """Opens the page with the token behind the `#` of its address, because a browser sends that
    part to no server. The browser is started with the name of a private file instead of the
    address, because other users can read command lines."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-tokens-{os.geteuid()}"
    private_folder(folder)
    file = folder / "open.html"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as page:
        page.write(f'<meta http-equiv="refresh" content="0; url={url}#token={token}">\n')
    webbrowser.open(file.as_uri())
