"""A process that starts OpenEnv servers of a guessing game, as often as it is asked.

Importing openenv takes seconds, so it is done once here; each server is a fork, which can be killed
like any other process. Reads a port per line (0 for a free one), and answers with `pid port`. Its
argument is how many sessions a server has room for.
"""

import contextlib
import os
import random
import signal
import socket
import sys
import time

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    number: int


class Hint(Observation):
    hint: str
    tries: int


class Guessing(Environment[Guess, Hint, State]):
    """Guess a number below 100. -1 breaks it, -2 lets it hang."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, *, unseeded=False, **kwargs) -> Hint:
        self._number = random.Random(None if unseeded else seed).randrange(100)
        self._tries = 0
        return Hint(hint=f"up to 99 {random.random() if unseeded else ''}".strip(), tries=0)

    def step(self, action: Guess, timeout_s=None, **kwargs) -> Hint:
        if action.number == -1:
            raise OSError("the dice are lost")
        if action.number == -2:
            time.sleep(10)
        self._tries += 1
        if action.number == self._number:
            return Hint(hint="yes", tries=self._tries, done=True, reward=1.0)
        hint = "higher" if action.number < self._number else "lower"
        return Hint(hint=hint, tries=self._tries, reward=None)

    @property
    def state(self) -> State:
        return State(step_count=self._tries)


def listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.stdin.close()
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=int(sys.argv[1]))
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pids = []
    for line in sys.stdin:
        listener = listening(int(line))
        pid = os.fork()
        if not pid:
            serve(listener)
            os._exit(0)
        pids.append(pid)
        print(pid, listener.getsockname()[1], flush=True)
        listener.close()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
