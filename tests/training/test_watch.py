"""A process that ends is noticed, whoever started it, and however it ended."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from holdfast.training.ranks.group import DeathWatch

SLEEPER = [sys.executable, "-S", "-c", "input()"]
DEADLINE = 60.0


class Deaths:
    def __init__(self):
        self.seen = []
        self._changed = threading.Condition()

    def note(self, key):
        with self._changed:
            self.seen.append(key)
            self._changed.notify_all()

    def wait(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, DEADLINE)


@pytest.fixture
def sleepers():
    processes = [subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_each_death_is_noticed_once(sleepers):
    deaths = Deaths()
    watch = DeathWatch({n: p.pid for n, p in enumerate(sleepers)}, deaths.note)
    os.kill(sleepers[1].pid, signal.SIGKILL)
    deaths.wait(1)
    sleepers[2].stdin.close()
    deaths.wait(2)
    watch.close()
    assert deaths.seen == [1, 2]


def test_one_that_has_ended_before_is_noticed_too(sleepers):
    sleepers[0].kill()
    sleepers[0].wait()
    deaths = Deaths()
    watch = DeathWatch({7: sleepers[0].pid}, deaths.note)
    deaths.wait(1)
    watch.close()


def test_nothing_is_called_after_the_end(sleepers):
    deaths = Deaths()
    watch = DeathWatch({0: sleepers[0].pid}, deaths.note)
    watch.close()
    sleepers[0].kill()
    sleepers[0].wait()
    assert deaths.seen == []
