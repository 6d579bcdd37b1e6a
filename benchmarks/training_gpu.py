"""The trainer on one GPU, against a hand-written packed loop and a padded one.

    python benchmarks/training_gpu.py                      # everything in PLAN
    python benchmarks/training_gpu.py 0.5B:16384:hand,ours # these
    python benchmarks/training_gpu.py --check              # numbers of the kernels against torch
    python benchmarks/training_gpu.py --head               # times of the head's parts

Random weights in Qwen2's shapes, a vocabulary of 152k, bf16, AdamW over float32 copies, lognormal
lengths. Each variant is a process of its own (`training_gpu_child`). Those of one SIZE:ROW are
prepared together, and measured one after the other while nothing else runs: tokens per second,
share of the measured matrix ceiling, peak memory, and how long the host takes to issue a step.
Tokens are those of the sequences, counted as if nothing was shared.

- `check`: no figures, but the last comparison of `--check`, while others prepare
- `hand`: packed rows of a fixed size, FlexAttention, each layer compiled, the head in chunks that
  are computed again on the way back; `hand_fused`: the chunks compiled, too
- `padded`: four sequences at a time, padded to the longest, full logits, as TRL's trainer has it
- `ours`: `Trainer`, as it is; `ours_lora`: with an adapter
- `…_shared`: 8 samples of each prompt, which is as long as a reply; `hand` packs them one by one
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

PLAN = (
    "0.5B:16384:check,hand,ours,ours_shared",
    "1.5B:32768:ours",
    "1.5B:32768:hand",
    "0.5B:16384:padded,ours_lora",
    "0.5B:65536:ours",
    "1.5B:16384:padded",
    "0.5B:16384:hand_shared,hand_fused",
    "1.5B:32768:ours_lora",
    "0.5B:65536:hand",
)
PREPARE_S, MEASURE_S = 240, 35
CHILD = Path(__file__).with_name("training_gpu_child.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", nargs="*", default=PLAN, help="SIZE:ROW:VARIANT,…")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--profile", action="store_true", help="kernels by time, too")
    parser.add_argument("--prepare", type=float, default=PREPARE_S, help="seconds to get ready")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for all of it")
    args = parser.parse_args()
    if args.check or args.head:
        from training_gpu_check import check, time_head

        (check if args.check else time_head)()
    else:
        _measure(args.plan, profile=args.profile, prepare=args.prepare, limit=args.limit)


def _measure(plan: list[str], *, profile: bool, prepare: float, limit: float) -> None:
    end = time.monotonic() + limit
    sizes = ",".join(dict.fromkeys(part.split(":")[0] for part in plan))
    with tempfile.TemporaryDirectory() as folder:
        make = _Child(sizes, folder)
        waves = [
            [_Child(f"{size}:{row}:{variant}", folder, profile=profile) for variant in names]
            for size, row, names in (_parse(part) for part in plan)
        ]
        try:
            make.wait_for("made", until=end)
            make.stop()
            for wave in waves:
                _measure_together(wave, prepare, end)
                _say(seconds=round(limit - (end - time.monotonic())))
        finally:
            for child in [make, *(child for wave in waves for child in wave)]:
                child.stop()


def _parse(part: str) -> tuple[str, str, list[str]]:
    size, row, variants = part.split(":")
    return size, row, variants.split(",")


def _measure_together(wave: "list[_Child]", prepare: float, end: float) -> None:
    """Prepares all, then measures one after the other."""
    for child in wave:
        child.go()
    until = min(time.monotonic() + prepare, end)
    ready = [child for child in wave if child.wait_for("ready", until=until)]
    for child in ready:
        child.go()
        child.wait_for(child.last, until=min(time.monotonic() + MEASURE_S, end))
        child.stop()


class _Child:
    """A process that waits to be told to go on, and whose lines are waited for."""

    def __init__(self, part: str, folder: str, *, profile: bool = False):
        self._part = part
        self.last = "kernels" if profile else "tokens_per_s"
        """What its last line tells."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        command = [sys.executable, str(CHILD), part, folder, *["--profile"] * profile]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={"TORCHINDUCTOR_COMPILE_THREADS": "4", **os.environ},
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            self._lines.put(line.decode())
        self._lines.put(None)

    def go(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended: its lines say so, and why.

    def wait_for(self, name: str, *, until: float) -> bool:
        """Whether a line that tells `name` came; else the process has ended, or is ended."""
        while True:
            try:
                line = self._lines.get(timeout=max(until - time.monotonic(), 0))
            except queue.Empty:
                _say(part=self._part, error="took too long")
                self.stop()
                return False
            if line is None:
                if self._process.wait():
                    self._errors.seek(0)
                    _say(part=self._part, error=self._errors.read().decode()[-1500:])
                return False
            _say(part=self._part, **json.loads(line))
            if name in json.loads(line):
                return True

    def stop(self) -> None:
        """Ends the process, so that its memory is free."""
        self._process.kill()
        self._process.wait()


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
