"""Runs the process of a scorer, which loads the scorer once, and then scores the trajectories that
it is sent, several at once.

The process inherits a connection from its parent and ends with it, or it listens for connections
that send a token. It has no access to the journal, and does not know how a score is used.
"""

import asyncio
import contextlib
import faulthandler
import hmac
import logging
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.engine.guards.event_loop import run_in_own_loop
from holdfast.engine.scoring.reward_functions import scorer_named
from holdfast.engine.scoring.scorer import Score, Scorer
from holdfast.engine.scoring.wire import (
    MAX_FRAME,
    ScoreExtended,
    ScoreFailed,
    ScorerAnswer,
    ScoreRequest,
    ScoreResult,
    ScorerHome,
    ScorerNotice,
    ScorerReady,
    ScorerRefused,
)
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import EndpointDown, PolicyRefused, ScorerTimeout, ThreadsHang
from holdfast.records.failure import as_exception, failure_of
from holdfast.records.foreign import headline_of, text_of
from holdfast.records.usage import MADE_JUDGE
from holdfast.rollout.processes.frames import LENGTH, frame, receive
from holdfast.rollout.processes.user_module import die_with, import_module
from holdfast.rollout.processes.user_process import STREAM_LIMIT
from holdfast.rollout.processors.processor import fingerprinted

TOKEN_SECONDS = 10.0
"""Seconds in which a network client must send the token."""
_log = logging.getLogger("holdfast")
"""The logger for messages to people, for example that an engine is down or back."""


def main(connection: int, driver: int) -> None:
    """Serves one connection until it closes."""
    die_with(driver)
    os.set_inheritable(connection, False)
    faulthandler.enable()
    run_in_own_loop(_serve_socket(socket.socket(fileno=connection)))
    # Threads of a hanging scorer must not keep this process alive.
    os._exit(0)


async def _serve_socket(sock: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=sock, limit=STREAM_LIMIT)
    await Serving(reader, writer).serve()


async def listen(host: str, port: int, *, token: str) -> asyncio.Server:
    """Serves every connection that sends the token as its first frame within `TOKEN_SECONDS`.

    Ends this process if its working folder is gone, because the process can then load no scorer.
    Ray, for example, removes the folders of a node that has ended. The code that started the
    process has to start another one.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await _has_token(reader, token):
            if not _has_folder():
                os._exit(1)
            await Serving(reader, writer).serve()
        writer.close()

    return await asyncio.start_server(serve, host, port, limit=STREAM_LIMIT)


async def _has_token(reader: asyncio.StreamReader, token: str) -> bool:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(TOKEN_SECONDS):
            # Bounded, so that a client without a token cannot send much.
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            first = await reader.readexactly(size) if size <= len(token) else b""
            return hmac.compare_digest(first, token.encode())
    return False


def _has_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


class _NoticeHandler(logging.Handler):
    """Sends warnings to the run, and also prints them in this process."""

    def __init__(self, send: Callable[[bytes], None]):
        super().__init__(logging.WARNING)
        self._loop = asyncio.get_running_loop()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        line = redact(record.getMessage())
        sys.stderr.write(f"{line}\n")
        with contextlib.suppress(RuntimeError):  # The loop is closed, and nobody waits any more.
            self._loop.call_soon_threadsafe(self._send, frame(ScorerNotice(line), most=MAX_FRAME))


class Serving:
    """Serves one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serves calls until the connection is closed, and then cancels the calls that still
        run."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            home = msgspec.msgpack.decode(
                await receive(self._reader, most=MAX_FRAME), type=ScorerHome
            )
            try:
                scorer = load_scorer(home)
            except BaseException as error:
                head = redact(headline_of(as_exception(error)))
                return await self._send(ScorerRefused(head, redact(text_of(error))))
            await self._send(ScorerReady(os.getpid()))
            notices = _NoticeHandler(self._writer.write)
            _log.addHandler(notices)
            try:
                await self._answer_all(scorer)
            finally:
                _log.removeHandler(notices)
        for task in list(self._running):
            task.cancel()
        return None

    async def _answer_all(self, scorer: Scorer) -> None:
        decoder = msgspec.msgpack.Decoder(ScoreRequest)
        while True:
            request = decoder.decode(await receive(self._reader, most=MAX_FRAME))
            task = asyncio.create_task(self._answer(scorer, request), name="score")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _answer(self, scorer: Scorer, request: ScoreRequest) -> None:
        answer: ScorerAnswer
        try:
            views = [view.decode() for view in request.views]
            if request.only_judge:
                identity = await scorer.first_judge(views, seconds=request.seconds)
                scores = [Score(None, details={MADE_JUDGE: identity})]
            else:
                scores = await scorer.score(
                    views,
                    seconds=request.seconds,
                    patience=request.patience,
                    on_extended=partial(self._extend, request.number),
                )
            answer = ScoreResult(request.number, scores)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            root = as_exception(error)
            answer = ScoreFailed(
                request.number,
                failure_of(error, phase="scoring"),
                timed_out=isinstance(root, ScorerTimeout | ThreadsHang),
                is_unusable=isinstance(root, EndpointDown | PolicyRefused),
            )
        with contextlib.suppress(ConnectionError):
            await self._send(answer)

    def _extend(self, number: int, seconds: float) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(frame(ScoreExtended(number, seconds), most=MAX_FRAME))

    async def _send(self, answer: ScorerAnswer) -> None:
        self._writer.write(frame(answer, most=MAX_FRAME))
        await self._writer.drain()


def load_scorer(home: ScorerHome) -> Scorer:
    """Loads the scorer.

    Raises if the scorer is missing, or differs from the scorer that the run began with.
    """
    folder = os.path.dirname(os.path.abspath(home.home.file))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = import_module(home.home)
    function: Callable[[Any], Any] = scorer_named(module, home.name)
    if home.fingerprint:
        fingerprint, _ = fingerprinted(function)
        if fingerprint != home.fingerprint:
            raise ValueError(
                f"the code of scorer {home.name} here is not that of the run ({fingerprint[:12]}, "
                f"not {home.fingerprint[:12]})"
            )
    return Scorer(function)
