"""Judged together is judged once; and a signal gets through to code that waits for nobody."""

import signal
import subprocess
import time
from pathlib import Path

from course import Course

LATE = """
from pathlib import Path

async def turn(t: Rollout):
    t.add(*t.task.messages)
    await t.generate()
    if t.task.id == "r1" and Path("broken").exists():
        if {settings} == 1 or Path("tried").exists():
            raise RuntimeError("it is broken")
        Path("tried").touch()

@evaluation_test(dataset=ROWS, rollout_processor=turn, {mode})
def test_it(rows):
    with open("calls", "a") as file:
        file.write(f"{{rows[0].input_metadata.row_id}} {{len(rows)}}\\n")
    return [1 / len(rows)] * len(rows)
"""
ALL = 'mode="all"'
SETTINGS = 'mode="groupwise", completion_params=[{"temperature": 0.1}, {"temperature": 0.2}]'


def calls(course: Course) -> list[str]:
    return sorted((course.folder / "calls").read_text().splitlines())


def retried(course: Course) -> None:
    """The evaluation with a row that fails, and again when that is mended."""
    mending = course.folder / "broken"
    mending.touch()
    course.run("--holdfast-max-retry", "0").assert_outcomes(failed=1)
    mending.unlink()
    course.run("--holdfast-retry-failed").assert_outcomes(passed=1)


def test_a_row_that_is_there_at_last_is_judged_with_all_others(course: Course) -> None:
    course.write(LATE.format(settings=1, mode=ALL))
    retried(course)
    assert calls(course) == ["r0 3", "r0 4"]
    histories = course.histories("test_it.test_it").values()
    assert [history.reward for history in histories] == [0.25] * 4


def test_and_so_are_those_of_other_settings(course: Course) -> None:
    course.write(LATE.format(settings=2, mode=SETTINGS))
    retried(course)
    for temperature in (0.1, 0.2):
        histories = course.histories(f"test_it.test_it[temperature={temperature}]").values()
        assert [history.reward for history in histories] == [0.5] * 4
    assert course.engine.stats().requests == 8, "nothing is rolled out again"


def interrupted(process: "subprocess.Popen[str]", sign: Path) -> bool:
    """Sends a signal, and gives it time to be heard."""
    process.send_signal(signal.SIGINT)
    for _ in range(100):
        if sign.exists():
            return True
        time.sleep(0.05)
    return False


def test_code_that_keeps_the_loop_busy_can_be_interrupted(course: Course) -> None:
    course.write(
        """
        import time
        from pathlib import Path

        def rows():
            Path("begun").touch()
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                Path("interrupted").touch()
                raise
            return ROWS

        @evaluation_test(dataset=rows)
        def test_it(row):
            return 1.0
        """
    )
    process = course.apart()
    try:
        while not (course.folder / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)  # The first asks it to stop.
        time.sleep(0.3)
        while not interrupted(process, course.folder / "interrupted"):
            pass  # Two that came at once were one to it.
        told, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 2, told
    assert "KeyboardInterrupt" in told
