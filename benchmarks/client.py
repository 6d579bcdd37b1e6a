"""The client: its CPU against loops that do the same by hand.

Whole answers: 256 at once, 256 tokens with ids and logprobs, validated. Streams: 1,024 tokens, one
event each, made durable every 64 tokens, against the same run that streams and keeps only whole
replies; and, for information, against a loop that reads the same streams by hand and keeps nothing.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from result import Result

from holdfast.testing import FakeEngine

HERE = Path(__file__).parent
ROUNDS = 7


def measure() -> list[Result]:
    with FakeEngine(mean_length=0) as engine:
        whole = _ratios(engine.url, "client", "bare")
        against_plain = _ratios(engine.url, "partial", "plain_stream")
        against_whole = _ratios(engine.url, "partial", "whole")
    return [
        Result("client: CPU / bare aiohttp and msgspec", *whole[:2], "≤ 1.3", whole[2]),
        Result(
            "partial tokens, 64: whole run / the same streams by hand",
            *against_plain[:2],
            "",
            against_plain[2],
        ),
        Result(
            "partial tokens, 64: CPU / the same run without drafts",
            *against_whole[:2],
            "≤ 1.2",
            against_whole[2],
        ),
    ]


def _ratios(url: str, ours: str, theirs: str) -> tuple[float, str, str]:
    """The least of each side: what else the machine does only ever adds CPU time."""
    pairs = [(_child(ours, url), _child(theirs, url)) for _ in range(ROUNDS)]
    mine, other = (min(side) for side in zip(*pairs, strict=True))
    return mine / other, "×", f"{mine:.2f} s against {other:.2f} s, the least of {ROUNDS} each"


def _child(mode: str, url: str) -> float:
    """CPU seconds, in a process of its own so that neither side warms the other up."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        done = subprocess.run(
            [sys.executable, str(HERE / "client_child.py"), mode, url, folder],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(json.loads(done.stdout)["cpu"])
