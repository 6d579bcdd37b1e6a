"""SIGKILL in the middle of a stream that an agent is being told: of the driver with its gateway, of
the engine, of the agent. What was delivered stands, and is not sampled again."""

import json
import os
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from holdfast.testing import Fault, FaultKind
from support.crash.lab import SIGKILLED, Baseline, Lab, read_samples, undisturbed, verify
from support.crash.streams_workload import REPLIES

QUICK = ("chat", "whole")
AGENTS = (*QUICK, "messages") if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1" else QUICK
CALLS = 4
HELD_AFTER = 70


class Paced(Lab):
    """Each reply is held in its middle until its agent was told of it."""

    def __init__(self, folder: Path, name: str):
        super().__init__(
            folder,
            names=(f"{name}0",),
            samples=1,
            workload="streams_workload",
            max_tokens=400,
            faults=(Fault(FaultKind.HOLD, after=HELD_AFTER),),
            replies=REPLIES,
        )

    def drive(self, place: Path, *, crash: str = "", paced: bool = True, **io: object) -> int:
        if not paced:
            return super().drive(place, crash=crash, **io)
        over = threading.Event()
        pacing = threading.Thread(target=self._pace, args=(place, over))
        pacing.start()
        try:
            return super().drive(place, crash=crash, **io)
        finally:
            over.set()
            pacing.join()

    def _pace(self, place: Path, over: threading.Event) -> None:
        while not over.wait(0.02):
            if self.engine.stats().held and (not streams(self) or Told(place).cut):
                self.engine.release()


@pytest.fixture(scope="module", params=AGENTS)
def lab(request, tmp_path_factory):
    with Paced(tmp_path_factory.mktemp(request.param), request.param) as lab:
        yield lab


@pytest.fixture(scope="module")
def baseline(lab) -> Baseline:
    found = undisturbed(lab)
    told = Told(lab.folder / "undisturbed")
    assert len(told.whole) == CALLS
    assert bool(told.pieces) == streams(lab)
    return found


def streams(lab: Lab) -> bool:
    """Whether its agent is told of its replies while they are sampled."""
    return not lab.folder.name.startswith("whole")


class Told:
    """What agents wrote down."""

    def __init__(self, place: Path):
        self.pieces: defaultdict[tuple[int, int], str] = defaultdict(str)
        """What each process was told of each call."""
        self.whole: dict[int, set[str]] = defaultdict(set)
        file = place / "effects.told"
        for line in file.read_text().splitlines() if file.exists() else ():
            row = json.loads(line)
            if "piece" in row:
                self.pieces[row["pid"], row["call"]] += row["piece"]
            else:
                self.whole[row["call"]].add(row["whole"])

    def check(self) -> None:
        """Whoever was told anything was told a beginning of the one answer that there is."""
        assert len(self.whole) == CALLS
        for call, answers in self.whole.items():
            (answer,) = answers
            for (_, asked), text in self.pieces.items():
                assert asked != call or answer.startswith(text)

    @property
    def cut(self) -> dict[int, str]:
        """The longest beginning that was told of each call whose end was not."""
        found: dict[int, str] = {}
        for (_, call), text in self.pieces.items():
            if call not in self.whole and len(text) > len(found.get(call, "")):
                found[call] = text
        return found


def assert_went_on(lab: Lab, drafted: dict[str, int], asked_before: int) -> None:
    """The first request for each unfinished reply had all of its durable tokens in its prompt."""
    calls = lab.engine.calls()
    for path, tokens in drafted.items():
        first = next(one for one in calls if one.id == path)
        again = [one for one in calls[asked_before:] if one.id == path]
        if again:
            assert again[0].prompt_tokens == first.prompt_tokens + tokens


def kill(lab: Lab, baseline: Baseline, plan: str) -> bool:
    """Kills the driver, and resumes; False when the run ended before."""
    place = lab.fresh(plan.replace(":", "-"))
    if (code := lab.drive(place, crash=plan)) == 0:
        return False
    assert code == SIGKILLED, plan
    before, asked, told = lab.world(place), len(lab.engine.calls()), Told(place)
    assert lab.drive(place) == 0, plan
    verify(baseline, before, lab.world(place), place)
    Told(place).check()
    assert_went_on(lab, before.drafted, asked)
    for call, text in told.cut.items():
        # What was told was durable. A token is a byte.
        durable = sum(n for path, n in before.drafted.items() if path.endswith(f"/{call}.0.0"))
        recorded = any(f"{call}.0.0" in steps for steps in before.steps.values())
        assert recorded or durable >= len(text.encode())
    return True


def skip_unless_streamed(lab: Lab) -> None:
    if not streams(lab):
        pytest.skip("it is told nothing before the end")


@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_driver_killed_after_it_has_told_some_of_a_reply_goes_on_with_it(lab, baseline, times):
    skip_unless_streamed(lab)
    assert kill(lab, baseline, f"gateway.delta:{times}")


@pytest.mark.parametrize("point", ["gateway.recorded", "gateway.sent"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_driver_killed_beside_the_end_of_a_stream_tells_it_again(lab, baseline, point, times):
    skip_unless_streamed(lab)
    assert kill(lab, baseline, f"{point}:{times}")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(3))
def test_a_driver_killed_at_a_draft_or_any_other_record_changes_nothing(lab, baseline, when, part):
    boundary = max(1, round((part + 0.5) / 3 * baseline.records))
    # How many drafts there are is a matter of time: a run may have fewer than another.
    while not kill(lab, baseline, f"{when}:{boundary}"):
        assert boundary > 1, f"{when}:{boundary} was not reached"
        boundary = max(1, boundary * 4 // 5)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("point", ["before", "after", "gateway.delta", "gateway.recorded"])
def test_a_driver_killed_anywhere_in_its_streams_changes_nothing(lab, baseline, point):
    if point.startswith("gateway"):
        skip_unless_streamed(lab)
    times = 1
    while kill(lab, baseline, f"{point}:{times}"):
        times += 1
    assert times > CALLS
    print(f"{times - 1} kills at {point}")


def drive_beside(lab: Lab, place: Path, beside) -> None:
    """Runs the driver to its end while `beside` happens."""
    codes: list[int] = []
    driving = threading.Thread(target=lambda: codes.append(lab.drive(place, paced=False)))
    driving.start()
    try:
        beside()
    finally:
        driving.join(120)
    assert codes == [0]


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def same_as(baseline: Baseline, place: Path) -> None:
    assert read_samples(place / "samples.jsonl") == baseline.samples
    Told(place).check()


@pytest.mark.parametrize("call", [0, 2])
def test_an_engine_killed_while_a_reply_is_told_goes_on_with_it(lab, baseline, call):
    place = lab.fresh(f"engine-{call}")
    lab.engine.set_faults(Fault(FaultKind.HOLD, matching=f"/{call}.0.0", after=HELD_AFTER))
    seen = {}

    def kill_engine() -> None:
        wait_until(lambda: lab.engine.stats().held)
        if streams(lab):
            wait_until(lambda: call in Told(place).cut)
        seen["cut"] = Told(place).cut.get(call, "")
        seen["prompt"] = lab.engine.calls()[-1].prompt_tokens
        lab.engine.set_faults()
        lab.engine.restart()

    drive_beside(lab, place, kill_engine)
    same_as(baseline, place)
    first, *rest = lab.engine.calls()
    # What was delivered is in the prompt of what samples the rest.
    assert first.prompt_tokens >= seen["prompt"] + len(seen["cut"].encode())
    assert bool(seen["cut"]) == streams(lab)
    assert len(rest) == CALLS - call - 1
    assert len((place / "effects.pids").read_text().split()) == 1


@pytest.mark.parametrize("call", [0, 2])
def test_a_reply_whose_agent_was_killed_while_it_was_told_is_sampled_once_and_told_again(
    lab, baseline, call
):
    skip_unless_streamed(lab)
    place = lab.fresh(f"agent-{call}")
    flag = {"CRASH_AT": str(call), "CRASH_PHASE": "stream", "CRASH_ONCE": str(place / "flag")}
    (place / "effects.env").write_text(json.dumps(flag))
    lab.engine.set_faults(Fault(FaultKind.HOLD, matching=f"/{call}.0.0", after=HELD_AFTER))

    def let_go() -> None:
        wait_until(lambda: os.path.exists(flag["CRASH_ONCE"]))
        # The reply outlives its agent: the next attempt waits for its end.
        wait_until(lambda: lab.engine.stats().held)
        lab.engine.release()

    drive_beside(lab, place, let_go)
    same_as(baseline, place)
    told = Told(place)
    assert len({pid for pid, _ in told.pieces}) == 2
    killed = next(iter(told.pieces))[0]
    delivered, (whole,) = told.pieces[killed, call], told.whole[call]
    assert 0 < len(delivered) < len(whole)
    assert len(lab.engine.requests()) == CALLS
