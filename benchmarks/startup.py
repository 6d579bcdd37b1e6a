"""Start-up: CPU of `import holdfast` and of `holdfast --help`."""

import resource
import statistics
import subprocess
import sys

from result import Result

ROUNDS = 5


def measure() -> list[Result]:
    return [
        Result("start-up: import holdfast", _cpu("-c", "import holdfast"), "s CPU", "≤ 0.3"),
        Result("start-up: holdfast --help", _cpu("-m", "holdfast", "--help"), "s CPU", "≤ 0.3"),
    ]


def _cpu(*words: str) -> float:
    found = []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(found)
