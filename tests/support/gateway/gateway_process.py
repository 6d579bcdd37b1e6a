"""`holdfast gateway` as a user runs it: a process that is killed and started again, and agents of
somebody else's that keep going."""

import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from holdfast.engine.export.export import What, rows
from holdfast.journal import open_journal
from holdfast.records.errors import JournalError
from holdfast.records.history import History
from holdfast.records.step import Generated
from holdfast.server_tokens import known_token
from holdfast.testing import FakeEngine
from support.fork_server import Popen

RUN = "agents"
SECONDS = 60.0
GONE = (ConnectionError, http.client.HTTPException, urllib.error.URLError, TimeoutError, OSError)
REPLIES = ("@0 so {n}", "@1 then {n}{n}", "@2 it is {n}")
TURNS = 3


def free_port() -> int:
    """One that the kernel gives to nobody by itself: it is listened at only later."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, *, what: str = "it", seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


class GatewayProcess:
    """One run in a folder; `start` is the same command each time."""

    def __init__(self, place: Path, engine: FakeEngine, *options: object, tasks=("a", "b")):
        place.mkdir(parents=True, exist_ok=True)
        self.place, self.engine = place, engine
        self.journal, self.log = place / "journal.db", place / "log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        lines = [json.dumps({"id": name, "prompt": f"do {name}"}) + "\n" for name in tasks]
        (place / "tasks.jsonl").write_text("".join(lines))
        self.options = options
        self.shows_progress = False
        self.process: subprocess.Popen[str] | None = None
        self.output = self._read_so_far = ""

    def arguments(self, *more: object) -> list[str]:
        arguments = (
            "gateway", "--tasks", self.place / "tasks.jsonl", "--run", RUN, "--seed", 7,
            "--policy", self.engine.url, "--model", self.engine.model, "--max-tokens", 60,
            "--journal", self.journal, "--port", self.port, "--log", self.log,
            *(() if self.shows_progress else ("--quiet",)), *self.options, *more,
        )  # fmt: skip
        return [sys.executable, "-m", "holdfast", *(str(word) for word in arguments)]

    def start(self, *more: object, crash: str = "", **env: str) -> None:
        env = {**os.environ, **env, **({"HOLDFAST_CRASH": crash} if crash else {})}
        self._read_so_far = ""
        self.process = Popen(
            self.arguments(*more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def hear(self, text: str) -> None:
        """Waits until it has said so."""
        while text not in self._read_so_far:
            read = os.read(self.process.stdout.fileno(), 65536)
            assert read, f"it ended without these words: {self._read_so_far}"
            self._read_so_far += read.decode()

    def ended(self, seconds: float = SECONDS) -> int:
        """Its exit code; what it said is in `said`."""
        rest, _ = self.process.communicate(timeout=seconds)
        self.output = self._read_so_far + rest
        return self.process.returncode

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    # --- the processes

    @property
    def workers(self) -> list[int]:
        pid = self.process.pid
        with contextlib.suppress(FileNotFoundError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return [int(child) for child in children if is_running(int(child))]
        return []

    def owner(self, task: str = "a") -> int:
        """The process that has a trajectory."""
        row = next(row for row in self.trajectories() if row.key.task == task)
        matcheds = re.match(r"process (\d+) ", row.owner)
        assert matcheds, "nobody has it"
        return int(matcheds[1])

    # --- what is recorded

    def trajectories(self) -> list:
        async def rows_of_run():
            journal = open_journal(self.journal, read_only=True)
            try:
                run = await journal.find_run(RUN)
                return [] if run is None else await journal.trajectories(run)
            finally:
                await journal.close()

        try:
            return asyncio.run(rows_of_run())
        except JournalError:
            return []  # It was not there yet, or killed before the file became a journal.

    def histories(self) -> dict[str, History]:
        async def histories_of_run():
            journal = open_journal(self.journal, read_only=True)
            try:
                run = await journal.find_run(RUN)
                return {str(row.key): History(r) async for row, r in journal.histories(run)}
            finally:
                await journal.close()

        return asyncio.run(histories_of_run()) if self.trajectories() else {}

    def durable(self) -> set[str]:
        """The generations, as the engine names them."""
        return {
            f"{name}/{path}"
            for name, history in self.histories().items()
            for path, step in history.steps.items()
            if isinstance(step, Generated)
        }

    def samples(self) -> str:
        async def samples_of_run():
            journal = open_journal(self.journal, read_only=True)
            try:
                run = await journal.find_run(RUN)
                return [row async for row in rows(journal, run, What.SAMPLES)]
            finally:
                await journal.close()

        return json.dumps(asyncio.run(samples_of_run()), default=str)


def posted(url: str, body: object, key: str = "", *, seconds: float = SECONDS) -> dict:
    """One try. Streams are put together. Without a key, the gateway's token is sent."""
    if not (key := key or known_token(url) or ""):
        raise ConnectionRefusedError("the gateway is not there yet")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        if not answer.headers["Content-Type"].startswith("text/event-stream"):
            return json.load(answer)
        text, whole = "", False
        for line in answer:
            whole = whole or line.startswith(b"data: [DONE]")
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
        if not whole:
            raise ConnectionResetError("the stream broke off")
        return {"choices": [{"message": {"role": "assistant", "content": text}}]}


class Agent(threading.Thread):
    """Takes trajectories until there are none, and does not give up when nobody answers: it asks
    again, with the key that it has."""

    def __init__(self, gateway: GatewayProcess, *, stream: bool = False, item: bool = False):
        super().__init__(daemon=True)
        self._outpost, self._stream, self._one = gateway, stream, item
        self.taken: list[dict] = []
        self.replies: list[tuple[str, str]] = []
        """What it was answered, with the trajectory."""
        self.tries = 0
        self.completed: list[str] = []
        self.error: BaseException | None = None
        self.after_call = lambda turn: None
        self._halted = threading.Event()

    def run(self) -> None:
        try:
            while not self._halted.is_set() and self._work() and not self._one:
                pass
        except BaseException as error:
            self.error = error

    def halt(self) -> None:
        self._halted.set()

    def _work(self) -> bool:
        taken = self.insist(f"{self._outpost.url}/trajectories", {"wait": 5}, over=(410, 404))
        if not taken:
            return False
        self.taken.append(taken)
        messages = list(taken["task"]["messages"])
        for turn in range(TURNS):
            body = {"model": "m", "messages": messages, "stream": self._stream}
            answer = self.insist(f"{taken['openai_base_url']}/chat/completions", body, taken["key"])
            message = answer["choices"][0]["message"]
            self.replies.append((taken["trajectory"], message["content"]))
            self.after_call(turn)
            messages += [
                {"role": "assistant", "content": message["content"]},
                {"role": "user", "content": f"{turn}"},
            ]
        # Where the last word of a run is durable and its gateway dies before it says so, the next
        # one finds nothing to do, and nobody is there to ask.
        done = self.insist(
            f"{taken['bound_url']}/complete", {"reward": 0.5}, taken["key"], over=(404,)
        )
        assert done in ({}, {"completed": True, "reward": 0.5}), done
        self.completed.append(taken["trajectory"])
        return True

    def insist(self, url: str, body: object, key: str = "", *, over=()) -> dict:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and not self._halted.is_set():
            self.tries += 1
            try:
                return posted(url, body, key)
            except urllib.error.HTTPError as error:
                text = error.read().decode()
                if error.code in over and (error.code != 404 or self._over()):
                    return {}
                if error.code not in (404, 503):
                    raise AssertionError(f"{url}: {error.code} {text}") from error
            except GONE:
                if over and self._over():
                    return {}
            time.sleep(0.1)
        raise AssertionError(f"nobody answers at {url}")

    def _over(self) -> bool:
        """Whether all is done, and nobody is left to say so."""
        rows = self._outpost.trajectories()
        return bool(rows) and all(row.settled for row in rows)


def work(gateway: GatewayProcess, *agents: Agent) -> int:
    """Lets the agents finish; the exit code of the gateway."""
    for agent in agents:
        if agent.ident is None:
            agent.start()
    for agent in agents:
        agent.join(SECONDS)
        assert not agent.is_alive(), "the agent hangs"
        if agent.error is not None:
            raise agent.error
    return gateway.ended()


SIGKILLED = -signal.SIGKILL


def metrics(gateway: GatewayProcess) -> str:
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=20) as answer:
        return answer.read().decode()


def holding(gateway: GatewayProcess) -> list[str]:
    """What each worker that is there says."""
    try:
        matches = re.findall(
            r'^holdfast_gateway_holding\{worker="\d"\} (\d)$', metrics(gateway), re.MULTILINE
        )
    except (OSError, urllib.error.URLError):
        return []
    return matches
