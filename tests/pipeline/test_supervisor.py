"""Four endings, restarts, and no process that is left."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from holdfast.engine.stop import Stop
from holdfast.pipeline.child import PipelinePart
from holdfast.pipeline.settings import RestartPolicy
from holdfast.pipeline.supervisor import Supervisor

QUICK = RestartPolicy(restarts=2, delay=0.01, growth=1.0)


def part(folder: Path, name: str, code: str) -> PipelinePart:
    """A process that runs `code`; each start is a line in NAME.starts."""
    prologue = (
        "import os, signal, sys, time\n"
        f"path = {str(folder / name)!r} + '.starts'\n"
        "open(path, 'a').write(f'{os.getpid()}\\n')\n"
        "life = len(open(path).readlines())\n"
    )
    return PipelinePart(name, (sys.executable, "-c", prologue + code), folder / f"{name}.log")


def starts(folder: Path, name: str) -> list[int]:
    path = folder / f"{name}.starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def supervise(*parts: PipelinePart, policy: RestartPolicy = QUICK, stop_after: float = 0.0, **more):
    lines: list[str] = []

    async def body():
        stop = Stop()
        supervisor = Supervisor(parts, policy=policy, stop=stop, report=lines.append, **more)
        if stop_after:
            asyncio.get_running_loop().call_later(stop_after, stop.request, "enough")
        return await supervisor.run()

    ending = asyncio.run(body())
    return ending, lines


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


DONE = "pass"
CARE = "signal.signal(signal.SIGTERM, lambda *_: (print('care', flush=True), sys.exit(143)))\n"
LONG = CARE + "time.sleep(600)"


@pytest.mark.parametrize(
    ("first", "second"), [(DONE, "time.sleep(0.3)"), ("time.sleep(0.3)", DONE), (DONE, DONE)]
)
def test_whoever_ends_first_the_other_finishes(tmp_path, first, second):
    parts = part(tmp_path, "rollouter", first), part(tmp_path, "trainer", second)
    ending, lines = supervise(*parts)
    assert (ending.cause, ending.code, lines) == ("", 0, [])
    assert ending.restarts == {"rollouter": 0, "trainer": 0}


def test_a_part_that_is_killed_is_started_again(tmp_path):
    code = "os.kill(os.getpid(), signal.SIGKILL) if life == 1 else None"
    ending, lines = supervise(part(tmp_path, "rollouter", code), part(tmp_path, "trainer", DONE))
    assert (ending.cause, ending.restarts["rollouter"]) == ("", 1)
    assert lines == ["the rollouter was killed by signal 9; starting it again in 0.01 s"]
    assert len(starts(tmp_path, "rollouter")) == 2


def test_a_part_that_crashes_again_and_again_ends_the_run_with_its_cause_in_order(tmp_path):
    crash = "print('holdfast: the disk is full', file=sys.stderr); sys.exit(5)"
    parts = part(tmp_path, "rollouter", LONG), part(tmp_path, "trainer", crash)
    seen: list[tuple[str, str, str]] = []
    ending, _ = supervise(*parts, on_line=lambda *line: seen.append(line))
    assert ending.code == 5
    assert ending.cause == (
        "the trainer ended with 5: holdfast: the disk is full (and so 2 times before)"
    )
    assert ending.restarts == {"rollouter": 0, "trainer": 2}
    assert ("rollouter", "stdout", "care") in seen, "the other one ended with care"
    assert not any(lives(pid) for pid in starts(tmp_path, "rollouter"))


def test_a_part_that_was_refused_is_not_started_again(tmp_path):
    refuse = "print('holdfast: no such file', file=sys.stderr); sys.exit(2)"
    ending, lines = supervise(part(tmp_path, "rollouter", LONG), part(tmp_path, "trainer", refuse))
    assert (ending.code, lines) == (2, [])
    assert len(starts(tmp_path, "trainer")) == 1


def test_a_stop_ends_the_parts_one_after_the_other(tmp_path):
    order = tmp_path / "order"
    care = (
        "def end(*_):\n"
        "    time.sleep(0.2)\n"
        f"    open({str(order)!r}, 'a').write(sys.argv[0] + path[-9:] + '\\n')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "time.sleep(600)"
    )
    parts = part(tmp_path, "rollouter", care), part(tmp_path, "trainer", care)
    ending, _ = supervise(*parts, stop_after=1.5)
    assert (ending.cause, ending.code) == ("", 0)
    assert len(order.read_text().split()) == 2


def test_a_part_that_does_not_end_with_care_is_killed(tmp_path):
    deaf = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    )
    ending, _ = supervise(part(tmp_path, "trainer", deaf), stop_after=1.5, end_seconds=0.2)
    assert ending.cause == ""
    assert not any(lives(pid) for pid in starts(tmp_path, "trainer"))


def test_pipes_are_always_read_and_go_to_the_log(tmp_path):
    """More than any pipe holds, on both streams."""
    code = "[print('x' * 1000, file=f) for f in (sys.stdout, sys.stderr) for _ in range(500)]"
    seen: list[str] = []
    ending, _ = supervise(
        part(tmp_path, "trainer", code), on_line=lambda part, stream, text: seen.append(stream)
    )
    assert ending.code == 0
    assert (seen.count("stdout"), seen.count("stderr")) == (500, 500)
    assert len((tmp_path / "trainer.log").read_bytes()) == 1_001_000


def test_a_part_has_a_session_of_its_own_and_leaves_nobody_behind(tmp_path):
    code = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'orphan')!r}, 'w').write(f'{{child.pid}} {{os.getsid(0)}}')\n"
        "os._exit(0)"
    )
    supervise(part(tmp_path, "rollouter", code))
    orphan, session = map(int, (tmp_path / "orphan").read_text().split())
    assert session == starts(tmp_path, "rollouter")[0] != os.getsid(0)
    until = time.monotonic() + 60
    while Path(f"/proc/{orphan}").exists() and time.monotonic() < until:
        if Path(f"/proc/{orphan}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{orphan}").exists()


def test_a_supervisor_that_is_stopped_while_a_part_waits_for_its_restart_ends_at_once(tmp_path):
    crash = "os.kill(os.getpid(), signal.SIGKILL)"
    slow = RestartPolicy(restarts=9, delay=600.0, longest=600.0)
    began = time.monotonic()
    ending, lines = supervise(part(tmp_path, "trainer", crash), policy=slow, stop_after=1.5)
    assert (ending.cause, len(lines)) == ("", 1)
    assert time.monotonic() - began < 300
    assert signal.SIGKILL == 9
