"""`holdfast view` on journals whose content a test knows, as a process of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import msgspec

from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.group import Dismissal
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, system, user
from holdfast.records.trajectory import Status
from holdfast.server_tokens import known_token
from support.evaluation.graded_runs import (
    BROKEN,
    failed,
    failed_to_score,
    refilled,
    retried,
    running,
    scored,
    truncated,
    with_tools,
    write,
)
from support.fork_server import Popen
from support.records import consuming, finished, generated, joined, make_tasks, spec, started

EVIL = "</script><img src=x onerror=\"window.hurt=1;alert('x')\"><svg onload=alert(2)>"
ANSI = "\x1b[31mred\x1b[0m \u202eturned\u202c שלום"
CALLS = 10_000
LONG_LINE = 2_000_000
TURNS = 1_000


def _many_calls() -> Message:
    calls = tuple(ToolCall(f"c{n}", FunctionCall("look_up", f'{{"n": {n}}}')) for n in range(CALLS))
    return Message(Role.ASSISTANT, "many", tool_calls=calls)


def _many_turns() -> list:
    return [
        generated(
            str(n),
            base=str(n - 1) if n else "",
            keep=5 * n,
            added=("task:0",) if not n else (user(f"question {n}"),),
            message=assistant(f"turn {n} " + "words " * 30),
        )
        for n in range(TURNS)
    ]


def _tasks() -> dict:
    evil = msgspec.structs.replace(BROKEN, message=EVIL, traceback=f"{EVIL}\n{ANSI}", type="E")
    hostile = generated(
        "0",
        added=(system(EVIL), user(f"{EVIL} {ANSI}")),
        message=assistant(f"{EVIL} {ANSI}"),
        ids=list(EVIL.encode()),
    )
    return {
        "kelp": [with_tools(1.0), with_tools(0.0), retried(0.5), refilled(0.25)],
        "sea": [truncated(0.5), failed(), failed_to_score(), running()],
        EVIL: [
            scored(0.5, hostile, metrics={EVIL: 1.0}, reasons={EVIL: EVIL}),
            failed(evil),
            truncated(1.0, EVIL),
            with_tools(),
        ],
        "long": [
            scored(1.0, generated("0", added=("task:0",), message=assistant("x" * LONG_LINE))),
            scored(1.0, generated("0", added=("task:0",), message=_many_calls())),
            scored(1.0, *_many_turns()),
            scored(0.0, generated("0", added=("task:0",), message=assistant("another reply"))),
        ],
    }


async def _trained(journal: SqliteJournal) -> None:
    run = await journal.create_run(spec("trained", samples=2), (), sealed=False)
    await journal.admit(run, make_tasks("sum", "sea", EVIL))
    worker = await joined(journal, run)
    for claim in await journal.claim(worker, groups=3):
        for lease in claim.open:
            records = [started(), generated("0"), finished(Status.COMPLETED)]
            await journal.append(lease, records, status=Status.COMPLETED, settled=True)
    await journal.leave(worker)
    consumer = await consuming(journal, run)
    await journal.publish_version(run, "step-0", step=0, digest="d")
    await journal.next_batch(consumer, 1, groups=3)
    await journal.dismiss(consumer, [EVIL], reason=Dismissal.UNINFORMATIVE)
    await journal.commit(consumer, 1)
    await journal.unsubscribe(consumer)


def rich_journal(path: Path) -> Path:
    """A journal with failures, tools, hostile texts and long trajectories (`rich`), two runs of the
    same tasks (`wide`, `other`), and a run that was trained on (`trained`)."""

    async def written() -> None:
        journal = SqliteJournal(path)
        try:
            made = msgspec.structs.replace(spec("rich", samples=4), renderer="bytes")
            await write(journal, made, _tasks())
            for name, shift in (("wide", 0), ("other", 1)):
                tasks = {
                    f"task-{task}": [scored(((task + sample + shift) % 5) / 4) for sample in (0, 1)]
                    for task in range(150)
                }
                made = msgspec.structs.replace(spec(name), tags=("baseline",))
                await write(journal, made, tasks)
            await _trained(journal)
        finally:
            await journal.close()

    asyncio.run(written())
    return path


class Viewed:
    """A server of pages, and its process."""

    def __init__(self, url: str, process: "subprocess.Popen[str]"):
        self.url = url
        self.process = process

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """The status and the body."""
        request = urllib.request.Request(self.url + path, headers=headers)
        return _answer(request)

    def post(self, path: str, body: object, **headers: str) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"} | headers
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return _answer(urllib.request.Request(self.url + path, data=data, headers=headers))


def _answer(request: urllib.request.Request) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def viewing(journal: Path | str, *more: str) -> Iterator[Viewed]:
    """`holdfast view` on any free port."""
    command = [sys.executable, "-m", "holdfast", "view", "--journal", str(journal), "--port", "0"]
    process = Popen([*command, *more], stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "http://127.0.0.1:" in line, line + process.stderr.read()
        viewed = Viewed(line.removeprefix("holdfast: ").strip(), process)
        token = known_token(viewed.url)
        yield viewed
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        _, printed = process.communicate(timeout=30)
    assert token not in line + printed, "the token is in no log"
