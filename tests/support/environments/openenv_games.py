"""OpenEnv servers in processes of their own, and a policy that guesses. Does not import openenv."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.rollout.stage import Oracle

SESSIONS = 2


class Host:
    """Starts servers; ends with them all."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("openenv_host.py")), str(SESSIONS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def serve(self, port: int = 0) -> "Server":
        self._process.stdin.write(f"{port}\n")
        self._process.stdin.flush()
        pid, port = map(int, self._process.stdout.readline().split())
        return Server(self, pid, port)

    def close(self) -> None:
        with self._process as process:
            process.stdin.close()
            process.wait(timeout=30)


class Server:
    def __init__(self, host: Host, pid: int, port: int):
        self._host, self.pid, self.port = host, pid, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """It is gone, and its port free, when this returns."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            while True:
                os.kill(self.pid, 0)
                time.sleep(0.005)

    def start_again(self) -> None:
        self.pid = self._host.serve(self.port).pid


def guesser(before_guess=lambda tries: None) -> Oracle:
    """Halves what is left, from what it said and was told so far."""

    def answer(request) -> str:
        low, high, tries = 0, 99, 0
        text = bytes(token for token in request.prompt if token < 256).decode()
        for number, hint in re.findall(r'"number": (\d+)}[^{]*{"hint":"(higher|lower)"', text):
            low, high = (int(number) + 1, high) if hint == "higher" else (low, int(number) - 1)
            tries += 1
        before_guess(tries)
        return f'I guess: {{"number": {(low + high) // 2}}}'

    return Oracle(answer)
