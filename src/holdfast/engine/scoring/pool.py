"""Runs scorers in a pool of processes, while rollouts go on elsewhere.

If a process dies, no rollout is lost, and its scores are computed again by another process. Only
after `MAX_DEATHS` processes died over the same score does its scoring fail. A process that exceeds
a deadline is not used again. `aclose` always ends all processes, and the next score starts a new
one.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from holdfast import log_files
from holdfast.engine.options import PATIENCE
from holdfast.engine.scoring.scorer import (
    GroupScorer,
    PointScorer,
    Read,
    Score,
    Scorer,
    ScorerFailed,
    checked,
)
from holdfast.engine.scoring.wire import (
    MAX_FRAME,
    EncodedView,
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
from holdfast.records.encoding import codec
from holdfast.records.errors import EndpointDown, ScorerDied, ScorerTimeout, ScorerUnloadable
from holdfast.records.usage import MADE_JUDGE
from holdfast.records.view import TrajectoryView
from holdfast.rollout.processes.frames import LENGTH, BadFrame, frame, receive
from holdfast.rollout.processes.user_process import STREAM_LIMIT, UserProcess
from holdfast.rollout.threads.contain import finishes_in_time

MAX_DEATHS = 5
"""How many processes one score may cost before its scoring fails."""
START_SECONDS = 300.0
"""How long the import of a scorer may take, and how long a score waits for a process."""
RETRY_SECONDS = 1.0
"""Seconds before a process that could not be reached is tried again."""
EXIT_SECONDS = 0.2
"""How long a process that closed its connection may take to end by itself."""
SLACK_SECONDS = 5.0
"""Extra seconds after a score's deadline, in which its process can report the timeout itself."""
_log = logging.getLogger("holdfast")
_answers: msgspec.msgpack.Decoder[ScorerAnswer] = msgspec.msgpack.Decoder(ScorerAnswer)


class _ConnectionLost(Exception):
    """The connection to the process is lost."""


class ScorerSeat(Protocol):
    """A place where one scorer process runs or is started."""

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection to the process. Raises OSError if no process can be reached now."""
        ...

    async def end(self) -> str:
        """Ends the process completely, and returns how it ended."""
        ...


class LocalSeat:
    """A process on this machine, which is started when it is opened."""

    def __init__(self, logs: Path | None):
        self._logs = logs
        self._child: UserProcess | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with self._output() as output:
            self._child = UserProcess("holdfast.engine.scoring.process", output=output)
        return await self._child.connect()

    @contextlib.contextmanager
    def _output(self) -> Iterator[int | None]:
        """Yields the file for the process's output, or None without a folder for such files."""
        if self._logs is None:
            yield None
            return
        with log_files.new_log(self._logs, "scorer").open("ab") as file:
            yield file.fileno()

    async def end(self) -> str:
        child, self._child = self._child, None
        if child is None:
            return "it was not started"
        return await asyncio.to_thread(child.end, grace=EXIT_SECONDS)


class ScorerAt(Struct, frozen=True):
    """A process that listens at an address, and that other code starts and ends."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"ScorerAt({self.host!r}, {self.port})"

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=STREAM_LIMIT)
        body = self.token.encode()
        writer.write(LENGTH.pack(len(body)) + body)
        return reader, writer

    async def end(self) -> str:
        return f"the scorer at {self.host}:{self.port} closed its connection"


class _Notices:
    """Logs messages from all processes of a pool. A line is left out if it equals the last line of
    any process."""

    def __init__(self) -> None:
        self._last: dict[object, str] = {}

    def say(self, slot: object, line: str) -> None:
        if line not in self._last.values():
            _log.warning(line)
        self._last[slot] = line

    def forget(self, slot: object) -> None:
        self._last.pop(slot, None)


class _Slot:
    """One process of the pool, with its running calls."""

    def __init__(self, seat: ScorerSeat, home: ScorerHome, notices: _Notices):
        self.seat = seat
        self._notices = notices
        self.in_use = 0
        self.down_until = 0.0
        self._home = home
        self._opening = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[ScorerAnswer]] = {}
        self._extended: dict[int, float] = {}
        """The seconds by which the deadlines of running calls were extended, by call number."""
        self._is_spent = False

    async def ask(self, request: ScoreRequest) -> ScoreResult | ScoreFailed:
        """Sends a request and returns the answer.

        Raises `_ConnectionLost` if the process dies meanwhile, and OSError if no process can be
        reached.
        """
        async with self._opening:
            if self._writer is None:
                await self._open()
            writer = self._writer
            assert writer is not None, "it is open"
            future: asyncio.Future[ScorerAnswer] = asyncio.get_running_loop().create_future()
            self._waiting[request.number] = future
        try:
            writer.write(frame(request, most=MAX_FRAME))
            # The reader of this connection reports the error.
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            if request.seconds is not None:
                await self._in_time(future, request.number, request.seconds)
            answer = await future
        finally:
            self._waiting.pop(request.number, None)
            self._extended.pop(request.number, None)
        assert isinstance(answer, ScoreResult | ScoreFailed), "it says once that it is ready"
        await self._retire(answer)
        return answer

    async def _in_time(
        self, future: "asyncio.Future[ScorerAnswer]", number: int, seconds: float
    ) -> None:
        """Waits for the answer to a call. If there is no answer in time, ends the process and
        raises `ScorerTimeout`. The process itself may extend this time."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds + SLACK_SECONDS
        if not await finishes_in_time(
            future, lambda: end + self._extended.get(number, 0.0) - clock()
        ):
            await self.close()
            raise ScorerTimeout(f"its process did not answer within {seconds:g} s and was ended")

    async def _retire(self, answer: ScoreResult | ScoreFailed) -> None:
        """Gives up a process in which a call timed out, and closes it once its other calls are
        answered."""
        self._is_spent = self._is_spent or (isinstance(answer, ScoreFailed) and answer.timed_out)
        if self._is_spent and not self._waiting:
            await self.close()

    async def _open(self) -> None:
        self._is_spent = False
        async with asyncio.timeout(START_SECONDS):
            reader, writer = await self.seat.open()
            try:
                writer.write(frame(self._home, most=MAX_FRAME))
                first = _answers.decode(await receive(reader, most=MAX_FRAME))
            except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError) as error:
                writer.close()
                raise OSError(await self.seat.end()) from error
        if isinstance(first, ScorerRefused):
            writer.close()
            await self.seat.end()
            raise ScorerUnloadable(
                f"scorer {self._home.name} ({self._home.home.file}) cannot be loaded in a process "
                f"of its own: {first.message}"
            )
        assert isinstance(first, ScorerReady), "nothing was asked yet"
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader), name="answers of a scorer")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                answer = _answers.decode(await receive(reader, most=MAX_FRAME))
                if isinstance(answer, ScorerNotice):
                    self._notices.say(self, answer.line)
                    continue
                if isinstance(answer, ScoreExtended):
                    before = self._extended.get(answer.number, 0.0)
                    self._extended[answer.number] = before + answer.seconds
                    continue
                number = getattr(answer, "number", None)
                future = None if number is None else self._waiting.get(number)
                if future is not None and not future.done():
                    future.set_result(answer)
        except (asyncio.IncompleteReadError, OSError, BadFrame, msgspec.MsgspecError):
            await self._lose()

    async def _lose(self) -> None:
        self._notices.forget(self)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        # Taken before the first await, because the next process has its own.
        waiting, self._waiting = self._waiting, {}
        how = await self.seat.end()
        for future in waiting.values():
            if not future.done():
                future.set_exception(_ConnectionLost(how))

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await self._lose()


class ScorerPool(Scorer):
    """A scorer that runs its calls in separate processes."""

    def __init__(
        self,
        function: "PointScorer | GroupScorer",
        home: ScorerHome,
        *,
        seats: Sequence[ScorerSeat],
        at_once: int = 1,
    ):
        """`at_once` is the number of scores that one process computes at the same time."""
        super().__init__(function)
        self._home = home
        self._at_once = at_once
        self._notices = _Notices()
        self._slots = [_Slot(seat, home, self._notices) for seat in seats]
        self._change = asyncio.Condition()
        self._numbers = itertools.count(1)

    @property
    def seats(self) -> list[ScorerSeat]:
        return [slot.seat for slot in self._slots]

    async def replace(self, seats: Sequence[ScorerSeat]) -> None:
        """Replaces the processes by those of `seats`. Processes whose seat is in `seats` keep
        running. Scores that the removed processes had not finished are computed again."""
        kept = [slot for slot in self._slots if slot.seat in seats]
        gone = [slot for slot in self._slots if slot.seat not in seats]
        known = [slot.seat for slot in kept]
        fresh = [seat for seat in seats if seat not in known]
        self._slots = kept + [_Slot(seat, self._home, self._notices) for seat in fresh]
        for slot in gone:
            await slot.close()
        await self._notify()

    async def score(
        self,
        views: Sequence[TrajectoryView],
        *,
        seconds: float | None = None,
        patience: float = PATIENCE.default,
        read: Read | None = None,
        on_extended: Callable[[float], None] = lambda seconds: None,
    ) -> list[Score]:
        assert read is not None, "a pool is given what the journal holds"
        encoded = [await _encode(view, read) for view in views]
        answer = await self._ask(encoded, seconds, patience)
        if isinstance(answer, ScoreFailed):
            if answer.is_unusable:
                raise EndpointDown(answer.failure.message)
            raise ScorerFailed(answer.failure)
        if len(answer.scores) != len(views):
            raise TypeError(f"scorer {self.name} gave {len(answer.scores)} scores for {len(views)}")
        return [checked(score, f"scorer {self.name}") for score in answer.scores]

    async def first_judge(
        self,
        views: Sequence[TrajectoryView],
        *,
        seconds: float | None = None,
        read: Read | None = None,
    ) -> str:
        assert read is not None, "a pool is given what the journal holds"
        encoded = [await _encode(view, read) for view in views]
        answer = await self._ask(encoded, seconds, 0, only_judge=True)
        if isinstance(answer, ScoreFailed):
            raise ScorerFailed(answer.failure)
        return str(answer.scores[0].details[MADE_JUDGE])

    async def _ask(
        self,
        views: list[EncodedView],
        seconds: float | None,
        patience: float,
        *,
        only_judge: bool = False,
    ) -> ScoreResult | ScoreFailed:
        loop, why = asyncio.get_running_loop(), ""
        deaths, deadline = 0, loop.time() + START_SECONDS
        while deaths < MAX_DEATHS:
            slot = await self._take(deadline, why)
            try:
                number = next(self._numbers)
                return await slot.ask(ScoreRequest(number, seconds, views, patience, only_judge))
            except _ConnectionLost as lost:
                deaths, why, deadline = deaths + 1, str(lost), loop.time() + START_SECONDS
            except (OSError, TimeoutError) as error:  # There was no process that could die.
                why, slot.down_until = str(error), loop.time() + RETRY_SECONDS
            finally:
                slot.in_use -= 1
                await self._notify()
        raise ScorerDied(f"{deaths} processes of scorer {self.name} died over it; the last: {why}")

    async def _take(self, deadline: float, why: str) -> _Slot:
        """Waits for a process with room, and returns the least busy one."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            free = [
                slot
                for slot in self._slots
                if slot.in_use < self._at_once and slot.down_until <= now
            ]
            if free:
                slot = min(free, key=lambda slot: slot.in_use)
                slot.in_use += 1
                return slot
            if all(slot.down_until > now for slot in self._slots) and now > deadline:
                raise ScorerDied(
                    f"no process of scorer {self.name} could be reached for {START_SECONDS:g} s"
                    + (f": {why}" if why else "")
                )
            async with self._change:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._change.wait(), RETRY_SECONDS)

    async def _notify(self) -> None:
        async with self._change:
            self._change.notify_all()

    async def aclose(self) -> None:
        await asyncio.gather(*(slot.close() for slot in self._slots))


async def _encode(view: TrajectoryView, read: Read) -> EncodedView:
    records = await read(view)
    return EncodedView(
        view.key, msgspec.msgpack.encode(view.task), [codec.encode(record) for record in records]
    )
