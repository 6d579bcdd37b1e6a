"""Sends tensors straight into the engine's workers by the engine's own transfer, a collective.

The collective runs in a process of its own, at the same time as the HTTP calls. If the collective
or a call fails, both are ended, and the error contains the engine's own words. All replicas get the
same broadcast. If a replica breaks the broadcast, a new group is formed without that replica, and
the remaining replicas still get their weights if possible. Subclasses know the endpoints of each
engine.
"""

import asyncio
import contextlib
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from holdfast import crashpoint
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.weights.carrier import Carrier, Device, Framing, this_device
from holdfast.weights.replica import UPDATE_SECONDS, Replica
from holdfast.weights.strategies.strategy import Acknowledgement, Offer, WeightStrategy
from holdfast.weights.version import WeightFolder, WeightsNotTaken

if TYPE_CHECKING:
    from holdfast.weights.collective import TensorMeta

JOIN_SECONDS = 60.0
GRACE_SECONDS = 5.0
"""Seconds to wait for an engine's report of an error, if the sender notices the error first."""
START_SECONDS = 120.0
"""The time limit for the start of the sender process, in seconds. The sender imports torch."""
LOOPBACK = "127.0.0.1"


class TransferBroken(HoldfastError):
    """A collective failed. `culprits` has the replicas that caused it, with their error
    messages."""

    def __init__(self, why: str, culprits: dict[Replica, str]):
        super().__init__(why)
        self.culprits = culprits


class TransferStrategy(WeightStrategy):
    """A transfer by a group whose members are this trainer and all replicas that use this
    strategy."""

    framing = Framing.BUCKETS
    members = "holdfast"
    """The kind of group that the sender process creates."""

    def __init__(
        self, carrier: Carrier, *, trainer: Device | None = None, join_seconds: float = JOIN_SECONDS
    ):
        """`trainer` is the device on which the trainer computes, by default the CPU."""
        self.name = carrier.value
        self.carrier = carrier
        self.trainer = trainer or this_device()
        self._sender = SenderProcess()
        self._members: tuple[Replica, ...] = ()
        self._join_seconds = join_seconds
        self._lock = asyncio.Lock()

    def describe(self, offer: Offer) -> str:
        world = 1 + sum(replica.world_size for replica in self._members)
        return f"{self.name} transfer (world of {world}{offer.detail})"

    async def start(self, replicas: Sequence[Replica]) -> None:
        """Forms the group at once. So a replica that cannot be reached is found before the first
        update."""
        try:
            async with self._lock:
                await self._form(tuple(replicas))
        except TransferBroken as error:
            raise UsageError(f"--weight-sync {self.name}: {error}") from error

    async def send(
        self, version: WeightFolder, replicas: Sequence[Replica]
    ) -> list[Acknowledgement]:
        acknowledgements: list[Acknowledgement] = []
        left = list(replicas)
        async with self._lock:
            while left:
                try:
                    await self._receive_all(version, tuple(left))
                    # The collective is over. A replica that fails now may be half loaded.
                    acknowledgements += await asyncio.gather(
                        *(self._finish_one(version, r) for r in left)
                    )
                    break
                except TransferBroken as error:
                    await self._break_off()
                    culprits = self._culprits(error, left)
                    acknowledgements += [
                        Acknowledgement(replica, why, is_intact=self.is_staged(replica))
                        for replica, why in culprits.items()
                    ]
                    left = [replica for replica in left if replica not in culprits]
        return acknowledgements

    def _culprits(self, error: TransferBroken, members: Sequence[Replica]) -> dict[Replica, str]:
        """Returns the replicas that get no more tensors, with the reasons. These are the replicas
        that broke the group, and the replicas that cannot leave a broken group. If it is unknown
        who broke the group, returns all members."""
        if not error.culprits:
            return dict.fromkeys(members, str(error))
        stuck = [replica for replica in members if not self.mends(replica)]
        return {**dict.fromkeys(stuck, f"its group broke: {error}"), **error.culprits}

    async def _receive_all(self, version: WeightFolder, replicas: tuple[Replica, ...]) -> None:
        if replicas != self._members:
            await self._form(replicas)
        await _together({r: self._begin(r) for r in replicas})
        crashpoint.reach("weights.begun")
        folder = version.path.resolve()
        metas = await asyncio.to_thread(_read_metas, folder)
        await _together(
            {r: self._receive(r, metas) for r in replicas},
            self._sender.ask(
                "send",
                within=UPDATE_SECONDS,
                folder=str(folder),
                seconds=UPDATE_SECONDS,
                framing=self.framing,
            ),
        )
        crashpoint.reach("weights.received")

    async def _finish_one(self, version: WeightFolder, replica: Replica) -> Acknowledgement:
        try:
            await self._finish(replica, version)
        except HoldfastError as error:
            return Acknowledgement(replica, str(error))
        return Acknowledgement(replica)

    async def _form(self, replicas: tuple[Replica, ...]) -> None:
        """Creates a new group. The members join it while their requests are open."""
        self._members = ()
        sizes = [replica.world_size for replica in replicas]
        address = _address(replicas)
        world = 1 + sum(sizes)
        seconds = self._join_seconds
        try:
            opened = await self._sender.ask(
                "open",
                within=seconds,
                address=address,
                world_size=world,
                seconds=seconds,
                **await self._open_options(replicas),
            )
        except WeightsNotTaken as error:
            raise TransferBroken(str(error), {}) from error
        port = opened["port"]
        at = {"master_address": address, "master_port": port, "world_size": world}
        offsets = [1 + sum(sizes[:number]) for number in range(len(replicas))]
        try:
            await _together(
                {r: self._join(r, at, offset) for r, offset in zip(replicas, offsets, strict=True)},
                # It answers when all members are there.
                self._sender.answer(seconds + GRACE_SECONDS),
            )
        except TransferBroken as error:
            await self._break_off()
            raise TransferBroken(
                f"{error}; the trainer waits at {address}:{port}: the engine's machine has to "
                "reach it, and the trainer's the engine's",
                error.culprits,
            ) from error
        self._members = replicas

    async def _break_off(self) -> None:
        self._members = ()
        await self._sender.kill()

    async def aclose(self) -> None:
        await self._sender.kill()

    async def _open_options(self, replicas: Sequence[Replica]) -> dict[str, object]:
        """Returns the options with which the sender process creates a new group."""
        return {
            "members": self.members,
            "carrier": self.carrier,
            "device": self.trainer.name if self.carrier is Carrier.NCCL else "cpu",
        }

    # --- what engines call it

    def is_staged(self, replica: Replica) -> bool:
        """Returns whether the replica receives all weights before it loads the first. In that case,
        a broken transfer changes nothing."""
        return False

    @abstractmethod
    async def _join(self, replica: Replica, at: dict[str, object], offset: int) -> None:
        """Makes the replica join the group. Its workers get the ranks from `offset` on."""

    @abstractmethod
    async def _begin(self, replica: Replica) -> None: ...

    @abstractmethod
    async def _receive(self, replica: Replica, metas: "Sequence[TensorMeta]") -> None:
        """Makes the replica receive tensors, while the broadcast runs."""

    @abstractmethod
    async def _finish(self, replica: Replica, version: WeightFolder) -> None: ...


def _read_metas(folder: Path) -> "list[TensorMeta]":
    from holdfast.weights.sender import metas_of

    return metas_of(folder)


async def _together(
    calls: "dict[Replica, Awaitable[None]]", collective: "Awaitable[object] | None" = None
) -> None:
    """Awaits all calls and the collective. The first failure cancels the remaining ones. Raises
    `TransferBroken`."""
    tasks: dict[asyncio.Future[None], Replica] = {
        asyncio.ensure_future(call): replica for replica, call in calls.items()
    }
    beside = None if collective is None else asyncio.ensure_future(collective)
    every: list[asyncio.Future[Any]] = [*tasks, *([beside] if beside is not None else [])]
    try:
        done, _ = await asyncio.wait(every, return_when=asyncio.FIRST_EXCEPTION)
        if beside in done and any(task not in done for task in tasks):
            # The collective noticed the failure first, but the engines know the reason.
            await asyncio.wait(tasks, timeout=GRACE_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        _raise_broken(tasks, beside)
    finally:
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)


def _raise_broken(
    tasks: "dict[asyncio.Future[None], Replica]", beside: "asyncio.Future[object] | None"
) -> None:
    culprits = {}
    for task, replica in tasks.items():
        error = task.exception() if task.done() else None
        if error is not None:
            if not isinstance(error, HoldfastError):
                raise error
            culprits[replica] = str(error)
    failed = beside.exception() if beside is not None and beside.done() else None
    if failed is not None and not isinstance(failed, HoldfastError):
        raise failed
    if culprits or failed is not None:
        why = "; ".join(culprits.values()) or str(failed)
        raise TransferBroken(why, culprits)


def _address(replicas: Sequence[Replica]) -> str:
    """Returns the address of this machine for engines. It is the address of the network interface
    towards the first engine on another machine. If all engines are on this machine, it is
    loopback."""
    from holdfast.weights.collective import address_towards

    hosts = [urlsplit(replica.endpoint.url).hostname or LOOPBACK for replica in replicas]
    away = [host for host in hosts if host not in (LOOPBACK, "localhost", "::1")]
    return address_towards(away[0]) if away else LOOPBACK


class SenderProcess:
    """The process that sends weights to one group at a time. If a caller stops in the middle of a
    request, it must `kill` the process."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def ask(self, do: str, *, within: float, **request: object) -> dict[str, object]:
        """Sends a request to the `Sender` and returns its first answer. Raises `WeightsNotTaken` if
        no answer arrives within `within` seconds."""
        await self._start()
        await self._write({"do": do, **request})
        return await self.answer(within)

    async def kill(self) -> None:
        """Kills the sender process, whatever it is doing. The next request starts a new process."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _start(self) -> None:
        if self._child is not None and self._child.returncode is None:
            return
        command = (sys.executable, "-m", "holdfast.weights.sender")
        self._child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        await self.answer(START_SECONDS)

    async def _write(self, request: dict[str, object]) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(msgspec.json.encode(request) + b"\n")
        try:
            await self._child.stdin.drain()
        except ConnectionError as error:
            raise WeightsNotTaken("the process that sends weights has died") from error

    async def answer(self, seconds: float) -> dict[str, object]:
        """Returns the next answer to the last request. A request may have several answers."""
        assert self._child is not None
        assert self._child.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await self._child.stdout.readline()
        except TimeoutError as error:
            raise WeightsNotTaken(f"weights were not sent within {seconds:g} s") from error
        if not line:
            raise WeightsNotTaken("the process that sends weights has died")
        answer: dict[str, object] = msgspec.json.decode(line)
        if "error" in answer:
            raise WeightsNotTaken(f"sending weights failed: {answer['error']}")
        return answer
