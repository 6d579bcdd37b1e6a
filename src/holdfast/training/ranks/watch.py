"""Notices when a process of this machine has ended, whoever started it.

A collective does not: gloo may wait for its deadline, and NCCL for longer. The kernel does, by a
handle on the process (`pidfd`), at once and however it ended.
"""

import os
import select
import threading
from collections.abc import Callable, Mapping


class DeathWatch:
    """Calls `on_death` with the key of each process of `pids` that ends, in a thread of its own,
    until it is closed."""

    def __init__(self, pids: Mapping[int, int], on_death: Callable[[int], None]):
        self._handles: dict[int, int] = {}
        self._on_death = on_death
        self._ending, self._closing = os.pipe()
        dead = []
        for key, pid in pids.items():
            try:
                self._handles[os.pidfd_open(pid)] = key
            except ProcessLookupError:
                dead.append(key)
        self._thread = threading.Thread(target=self._watch, args=(dead,), name="ranks that die")
        self._thread.daemon = True
        self._thread.start()

    def _watch(self, dead: list[int]) -> None:
        for key in dead:
            self._on_death(key)
        poll = select.poll()
        for handle in (self._ending, *self._handles):
            poll.register(handle, select.POLLIN)
        while True:
            for handle, _ in poll.poll():
                if handle == self._ending:
                    return
                poll.unregister(handle)
                self._on_death(self._handles[handle])

    def close(self) -> None:
        """Nothing is called afterwards."""
        os.close(self._closing)  # Its reader wakes up.
        self._thread.join()
        for handle in (self._ending, *self._handles):
            os.close(handle)
