"""Begins forks from a page. Each fork is a separate process, which runs `holdfast fork`.

The process ends with the server. The fork's run can then be continued with a command, like any
other run.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process

import msgspec

from holdfast.engine.open_run import free_name
from holdfast.journal import PASSWORDS, share_passwords
from holdfast.log_files import logs_of, new_log, open_log, tail
from holdfast.records.errors import UsageError
from holdfast.records.trajectory import TrajectoryKey
from holdfast.view.source import ShownJournal

POLL_SECONDS = 0.2
MAX_START_SECONDS = 600.0
STOP_SECONDS = 10.0


class ForkOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that forks a trajectory."""

    at: str
    say: str = ""
    edit: str = ""
    samples: int = 1


class Forks:
    """The processes of forks that this server began."""

    def __init__(self, source: ShownJournal):
        self._source = source
        self._processes: list[Process] = []

    async def begin(self, key: TrajectoryKey, order: ForkOrder) -> str:
        """Starts a fork of the trajectory, and returns the name of the new run once it is recorded.
        Raises `UsageError` with the command's own message if the fork cannot be made."""
        if order.say and order.edit:
            raise UsageError("a fork either says something or edits something: give one of them")
        name = await free_name(await self._source.journal(), f"{key.run}-fork")
        log = new_log(logs_of(name, self._source.where), "fork")
        arguments = [
            "fork", "--journal", self._source.where, "--run", name, f"--at={order.at}",
            f"--samples={order.samples}",
        ]  # fmt: skip
        # Other users can read command lines, so the text goes through a pipe.
        arguments += ["--say", "-"] if order.say else ["--edit", "-"] if order.edit else []
        share_passwords()
        environment = dict(os.environ)
        os.environ.pop(PASSWORDS, None)
        with open_log(log) as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast", *arguments, "--", key.run, str(key)),
                stdin=PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._processes = [each for each in self._processes if each.returncode is None]
        self._processes.append(process)
        assert process.stdin is not None, "it is a pipe"
        process.stdin.write((order.say or order.edit).encode())
        process.stdin.close()
        try:
            async with asyncio.timeout(MAX_START_SECONDS):
                while await (await self._source.journal()).find_run(name) is None:
                    if process.returncode is not None:
                        why = tail(log, 1).strip().removeprefix("holdfast: ")
                        raise UsageError(why or f"the fork ended with code {process.returncode}")
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise UsageError(f"run {name!r} does not begin; its log is {log}") from error
        return name

    async def close(self) -> None:
        """Stops the processes. Their runs can be continued later."""
        running = [each for each in self._processes if each.returncode is None]
        for process in running:
            process.terminate()
        for process in running:
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
