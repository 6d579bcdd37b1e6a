"""A rank other than rank 0 does what rank 0 says, until rank 0 is done or dead.

Rank 0 starts this process with `python -m holdfast.training.follower STORE RANK SIZE DEVICE`;
torchrun starts it as `holdfast train`. The process has no journal and no engine, and writes no
files.
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec

from holdfast.records.errors import HoldfastError
from holdfast.rollout.code.load import load_module
from holdfast.training.computation import Build, Call, Computation, Loss
from holdfast.training.objective.losses import policy_loss
from holdfast.training.ranks.group import END, FORCED_EXIT, JoinedRanks, RankDied
from holdfast.training.ranks.launch import join_started, join_torchrun
from holdfast.training.ranks.place import TorchrunPlace


def follow(group: JoinedRanks) -> int:
    """Does what rank 0 says until the end. Returns the exit code of this rank."""
    try:
        _follow(group)
    except RankDied as error:
        # Rank 0 reports which rank died first.
        sys.stderr.write(f"rank {group.rank}: {error}\n")
        return FORCED_EXIT
    except HoldfastError as error:
        group.fail(str(error))
        return FORCED_EXIT
    except Exception as error:
        group.fail(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
        traceback.print_exc()
        return FORCED_EXIT
    group.stop_watching()
    group.part()
    group.close()
    return 0


def _follow(group: JoinedRanks) -> None:
    computation: Computation | None = None
    while (message := group.receive()) != END:
        call = msgspec.msgpack.decode(message, type=Call)
        with group.together():
            if isinstance(call, Build):
                computation = Computation(call, group, _loss(call.loss))
            else:
                assert computation is not None, "a network is built first"
                computation.follow(call)


def _loss(place: str) -> Loss:
    if not place:
        return policy_loss
    from holdfast.training.run.checks import checked_loss

    file, _, name = place.rpartition(":")
    return checked_loss(getattr(load_module(Path(file)), name))


def follow_torchrun(place: TorchrunPlace, device: str) -> NoReturn:
    """Runs this process as one of torchrun's ranks. A signal reaches every rank, but only rank 0
    reacts to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    group = join_torchrun(place, device)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end(follow(group))


def main() -> NoReturn:
    store, rank, size, kind = sys.argv[1:]
    _end(follow(join_started(Path(store), rank=int(rank), size=int(size), kind=kind)))


def _end(code: int) -> NoReturn:
    """Ends the process at once, without Python's normal exit. During a normal exit, torch's threads
    have aborted ranks that were done. The process holds no data that could be lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
