"""`holdfast train --engine vllm` on one GPU, killed and continued; then its rollouts against a
hand-written client.

    python benchmarks/vllm_training.py --model DIR --device cuda --dtype bfloat16 --out DIR

Two trainings run at the same time, one of them with `--async`, each with a vLLM of its own. Each is
killed (SIGKILL of its process group) after some steps and continued by the same command. A third
vLLM then answers Holdfast and a bare aiohttp client in turns. If a training ends with an error, it
begins once more with `--weight-sync disk --on-gap warn`. DIR gets a log of each part, and
`summary.json`, which is written anew while the parts run.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROLLOUT = Path(__file__).with_name("vllm_training_rollout.py")
RATES = Path(__file__).with_name("vllm_training_rates.py")
CAREFUL = ("--weight-sync", "disk", "--on-gap", "warn")
STEP = re.compile(r"^step (\d+) ")
UPDATE = re.compile(rb'"POST /(pause|resume)\b')
KEPT_BYTES = 1_000_000
RESERVED_S = 65
"""For the comparison of rates, at the end."""


def main() -> int:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_measure(args))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine-python", default=sys.executable)
    parser.add_argument("--engine-options", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=44)
    parser.add_argument("--learning-rate", default="3e-5")
    parser.add_argument("--kill-after", default="2,2", help="steps of a start, then its kill")
    parser.add_argument("--only", default="sync,async,rates")
    parser.add_argument("--trajectories", type=int, default=768, help="of the rates")
    parser.add_argument("--seconds", type=float, default=500, help="for everything")
    return parser.parse_args()


async def _measure(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        clock = _Clock(args.seconds)
        parts = args.only.split(",")
        modes = {"sync": (), "async": ("--async",)}
        trainings = [
            _Training(name, options, args, folder=Path(folder), clock=clock)
            for name, options in modes.items()
            if name in parts
        ]
        rates = _Rates(args, folder=Path(folder), clock=clock)
        writing = asyncio.create_task(_keep_writing(args.out, trainings, rates))
        training = [asyncio.create_task(each.run()) for each in trainings]
        last = [rates.run(training)] if "rates" in parts else []
        results = await asyncio.gather(*training, *last, return_exceptions=True)
        writing.cancel()
        summary = _write(args.out, trainings, rates)
    for result in results:
        if isinstance(result, BaseException):
            print(f"a part failed: {result!r}")
    print(json.dumps(summary, indent=1))
    return 0


async def _keep_writing(out: Path, trainings: "list[_Training]", rates: "_Rates") -> None:
    while True:
        _write(out, trainings, rates)
        await asyncio.sleep(3)


def _write(out: Path, trainings: "list[_Training]", rates: "_Rates") -> dict[str, Any]:
    summary: dict[str, Any] = {each.name: each.summary() for each in trainings}
    summary["rates"] = rates.summary()
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    for each in trainings:
        each.copy_logs(out)
    rates.copy_logs(out)
    return summary


def _copy_end(source: Path, target: Path) -> None:
    if source.exists():
        with source.open("rb") as file:
            file.seek(max(0, source.stat().st_size - KEPT_BYTES))
            target.write_bytes(file.read())


class _Clock:
    def __init__(self, seconds: float):
        self._began = time.monotonic()
        self._seconds = seconds

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        return self._seconds - self.now


class _Log:
    """Lines with the time at which they came; also printed."""

    def __init__(self, path: Path, clock: _Clock):
        self.path = path
        self._clock = clock

    def write(self, line: str) -> None:
        text = f"[{self._clock.now:7.2f}] {line}"
        with self.path.open("a") as file:
            file.write(text + "\n")
        print(f"{self.path.stem}: {text}"[:400], flush=True)


async def _start(command: list[str], log: _Log, on_line: Callable[[str], None]) -> Any:
    """Starts a process in its own group. Its lines go to the log and to `on_line`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=1 << 24,
    )

    async def read() -> None:
        assert process.stdout is not None
        async for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            log.write(line)
            on_line(line)

    return process, asyncio.create_task(read())


def _kill(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError):  # It has ended.
        os.killpg(process.pid, signal.SIGKILL)


class _Training:
    """One training, killed and continued."""

    def __init__(
        self,
        name: str,
        options: tuple[str, ...],
        args: argparse.Namespace,
        *,
        folder: Path,
        clock: _Clock,
    ):
        self.name = name
        self._options = options
        self._args = args
        self._folder = folder
        self._clock = clock
        self._log = _Log(folder / f"{name}.log", clock)
        self._run = name
        self._starts: list[dict[str, float]] = []
        """Of each start: when it began, and the seconds from there to what it printed."""
        self._updates: list[float] = []
        """For how many seconds the engine was paused, for each version."""
        self._kills: list[str] = []
        self._codes: list[int | None] = []
        self._check = ""

    async def run(self) -> None:
        following = asyncio.create_task(self._follow_updates())
        try:
            if await self._to_the_end(self._options) != 0 and self._clock.left > RESERVED_S + 60:
                self._log.write(f"it begins once more, with {' '.join(CAREFUL)}")
                self._run += "-careful"
                await self._to_the_end((*self._options, *CAREFUL))
            await self._check_journal()
        finally:
            following.cancel()

    async def _to_the_end(self, options: tuple[str, ...]) -> int | None:
        kills = [int(step) for step in self._args.kill_after.split(",") if step]
        while True:
            process, reading = await _start(self._command(options), self._log, self._on_line)
            self._starts.append({"began": round(self._clock.now, 1)})
            try:
                is_killed = await self._kill_after(process, kills)
                async with asyncio.timeout(max(1, self._clock.left - RESERVED_S)):
                    await process.wait()
            except TimeoutError:
                self._log.write("it is ended: its time is over")
                return None
            finally:
                _kill(process)
                self._codes.append(await process.wait())
                await asyncio.wait([reading], timeout=5)
            if not is_killed:
                return int(process.returncode)
            kills.pop(0)

    def _command(self, options: tuple[str, ...]) -> list[str]:
        args = self._args
        return [
            sys.executable, "-m", "holdfast", "train", str(ROLLOUT), "--tasks", f"{ROLLOUT}:TASKS",
            "--model", str(args.model), "--run", self._run, "--out", str(self._out),
            "--journal", str(self._journal), "--engine", "vllm", "--engine-memory", "0.2",
            "--engine-python", args.engine_python, "--engine-options", args.engine_options,
            "--device", args.device, "--dtype", args.dtype, "--steps", str(args.steps),
            "--groups", str(args.groups), "--samples", str(args.samples),
            "--max-tokens", str(args.max_tokens), "--learning-rate", args.learning_rate,
            "--concurrency", str(args.groups * args.samples), *options,
        ]  # fmt: skip

    @property
    def _out(self) -> Path:
        return self._folder / self._run

    @property
    def _journal(self) -> Path:
        return self._folder / f"{self._run}.db"

    def _on_line(self, line: str) -> None:
        start = self._starts[-1]
        seconds = round(self._clock.now - start["began"], 1)
        if line.startswith("engine: "):
            start.setdefault("engine", seconds)
        elif line.startswith("weights: "):
            start.setdefault("weights", seconds)
        elif STEP.match(line):
            start.setdefault("first_step", seconds)
            start["steps"] = start.get("steps", 0) + 1

    async def _kill_after(self, process: Any, kills: list[int]) -> bool:
        """Kills the process after `kills[0]` steps of this start, in the next one. Returns False
        if it ended by itself, or if the time no longer suffices for another start."""
        while process.returncode is None and self._clock.left > RESERVED_S:
            if kills and self._starts[-1].get("steps", 0) >= kills[0]:
                await asyncio.sleep(random.uniform(0.2, 1.5))
                needed = 1.1 * self._starts[-1]["first_step"] + 15
                if self._clock.left - RESERVED_S < needed:
                    self._log.write(f"no time for another kill, which takes {needed:.0f} s")
                    return False
                if process.returncode is None:
                    self._kills.append(f"at {self._clock.now:.1f} s, in step {self._steps() + 1}")
                    self._log.write(f"SIGKILL, {self._kills[-1]}")
                    _kill(process)
                    return True
            await asyncio.sleep(0.05)
        return False

    def _metrics(self) -> list[dict[str, Any]]:
        path = self._out / "metrics.jsonl"
        try:
            return [json.loads(line) for line in path.read_text().splitlines() if line]
        except (OSError, ValueError):
            return []

    def _steps(self) -> int:
        return max((int(line["step"]) for line in self._metrics()), default=0)

    async def _follow_updates(self) -> None:
        """Reads from the engine's log for how long each update pauses it."""
        path, read, paused = self._out / "engine.log", 0, 0.0
        while True:
            await asyncio.sleep(0.01)
            if path != self._out / "engine.log":
                path, read = self._out / "engine.log", 0
            if not path.exists() or path.stat().st_size == read:
                continue
            read = min(read, path.stat().st_size)
            with path.open("rb") as file:
                file.seek(read)
                text = file.read()
            read += len(text)
            for match in UPDATE.finditer(text):
                if match[1] == b"pause":
                    paused = self._clock.now
                elif paused:
                    self._updates.append(round(self._clock.now - paused, 3))
                    paused = 0.0

    async def _check_journal(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", "journal", "check", str(self._journal),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        self._check = f"exit code {process.returncode}: {output.decode()[-300:].strip()}"

    def summary(self) -> dict[str, Any]:
        names = ("reward", "gap_mean", "gap_max", "seconds", "trainer_seconds", "sampled_tokens")
        metrics = self._metrics()
        return {
            "run": self._run,
            "exit_codes": self._codes,
            "starts": self._starts,
            "kills": self._kills,
            "engine_paused_s": self._updates,
            "journal_check": self._check,
            **{name: [_short(line.get(name)) for line in metrics] for name in names},
            "last_metrics": metrics[-1] if metrics else {},
        }

    def copy_logs(self, out: Path) -> None:
        _copy_end(self._log.path, out / f"{self.name}.log")
        _copy_end(self._out / "engine.log", out / f"{self._run}-engine.log")


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")


class _Rates:
    """Tokens per second of Holdfast and of a bare client, on a vLLM of their own."""

    def __init__(self, args: argparse.Namespace, *, folder: Path, clock: _Clock):
        self._args = args
        self._folder = folder
        self._clock = clock
        self._log = _Log(folder / "rates.log", clock)
        self._url = ""
        self._turns: list[dict[str, Any]] = []

    async def run(self, trainings: "list[asyncio.Task[None]]") -> None:
        if trainings:  # The first starts of the trainings are measured without this one.
            await asyncio.wait(trainings, timeout=min(150, self._clock.left / 3))
        server, reading = await _start(self._serve(), self._log, self._on_line)
        try:
            limit = max(1, self._clock.left - RESERVED_S + 10)
            if trainings:
                await asyncio.wait(trainings, timeout=limit)
            self._log.write(f"trainings that still run: {sum(not t.done() for t in trainings)}")
            while not self._url and server.returncode is None and self._clock.left > 20:
                await asyncio.sleep(0.1)
            if self._url:
                await self._compare()
        finally:
            server.terminate() if server.returncode is None else None
            await asyncio.wait([reading], timeout=10)
            _kill(server)

    def _serve(self) -> list[str]:
        args = self._args
        return [
            sys.executable, "-m", "holdfast", "serve", "--engine", "vllm", "--port", "0",
            "--model", str(args.model), "--engine-memory", "0.1", "--engine-python",
            args.engine_python, "--engine-options",
            f"{args.engine_options} --disable-uvicorn-access-log",
        ]  # fmt: skip

    def _on_line(self, line: str) -> None:
        if match := re.match(r"serving \S+ at (\S+)", line):
            self._url = match[1]

    async def _compare(self) -> None:
        command = [sys.executable, str(RATES), self._url, str(self._args.model)]
        command += [str(self._folder), str(self._args.trajectories)]
        process, reading = await _start(command, self._log, self._on_rate)
        try:
            async with asyncio.timeout(max(1, self._clock.left - 5)):
                await process.wait()
        except TimeoutError:
            self._log.write("the comparison is ended: its time is over")
        finally:
            _kill(process)
            await asyncio.wait([reading], timeout=5)

    def _on_rate(self, line: str) -> None:
        if line.startswith('{"side"'):
            self._turns.append(json.loads(line))

    def summary(self) -> dict[str, Any]:
        return {"turns": self._turns}

    def copy_logs(self, out: Path) -> None:
        _copy_end(self._log.path, out / "rates.log")


if __name__ == "__main__":
    sys.exit(main())
