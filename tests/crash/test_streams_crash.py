"""SIGKILL in the middle of a stream that an agent is being told: of the driver with its gateway, of
the engine, of the agent. What was delivered stands, and is not sampled again."""

import json
import os
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from holdfast.testing import Fault, FaultKind
from support.crash.killable_run import (
    SIGKILLED,
    Baseline,
    KillableRun,
    read_samples,
    undisturbed,
    verify,
)
from support.crash.streams_workload import REPLIES
from support.processes import wait_until

QUICK = ("chat", "whole")
AGENTS = (*QUICK, "messages") if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1" else QUICK
CALLS = 4
HELD_AFTER = 70


class Paced(KillableRun):
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
            if self.engine.stats().held and (not streams(self) or AgentNotes(place).cut):
                self.engine.release()


@pytest.fixture(scope="module", params=AGENTS)
def killable(request, tmp_path_factory):
    with Paced(tmp_path_factory.mktemp(request.param), request.param) as killable:
        yield killable


@pytest.fixture(scope="module")
def baseline(killable) -> Baseline:
    result = undisturbed(killable)
    message = AgentNotes(killable.folder / "undisturbed")
    assert len(message.whole) == CALLS
    assert bool(message.pieces) == streams(killable)
    return result


def streams(killable: KillableRun) -> bool:
    """Whether its agent is told of its replies while they are sampled."""
    return not killable.folder.name.startswith("whole")


class AgentNotes:
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
            for (_, request), text in self.pieces.items():
                assert request != call or answer.startswith(text)

    @property
    def cut(self) -> dict[int, str]:
        """The longest beginning that was told of each call whose end was not."""
        fields: dict[int, str] = {}
        for (_, call), text in self.pieces.items():
            if call not in self.whole and len(text) > len(fields.get(call, "")):
                fields[call] = text
        return fields


def assert_went_on(killable: KillableRun, drafted: dict[str, int], requests_before: int) -> None:
    """The first request for each unfinished reply had all of its durable tokens in its prompt."""
    calls = killable.engine.calls()
    for path, tokens in drafted.items():
        first = next(call for call in calls if call.id == path)
        again = [call for call in calls[requests_before:] if call.id == path]
        if again:
            assert again[0].prompt_tokens == first.prompt_tokens + tokens


def kill(killable: KillableRun, baseline: Baseline, plan: str) -> bool:
    """Kills the driver, and resumes; False when the run ended before."""
    place = killable.fresh(plan.replace(":", "-"))
    if (code := killable.drive(place, crash=plan)) == 0:
        return False
    assert code == SIGKILLED, plan
    before, count, message = killable.world(place), len(killable.engine.calls()), AgentNotes(place)
    assert killable.drive(place) == 0, plan
    verify(baseline, before, killable.world(place), place)
    AgentNotes(place).check()
    assert_went_on(killable, before.drafted, count)
    for call, text in message.cut.items():
        # What was told was durable. A token is a byte.
        durable = sum(n for path, n in before.drafted.items() if path.endswith(f"/{call}.0.0"))
        recorded = any(f"{call}.0.0" in steps for steps in before.steps.values())
        assert recorded or durable >= len(text.encode())
    return True


def skip_unless_streamed(killable: KillableRun) -> None:
    if not streams(killable):
        pytest.skip("it is told nothing before the end")


@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_driver_killed_after_it_has_told_some_of_a_reply_goes_on_with_it(
    killable, baseline, times
):
    skip_unless_streamed(killable)
    assert kill(killable, baseline, f"gateway.delta:{times}")


@pytest.mark.parametrize("point", ["gateway.recorded", "gateway.sent"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_driver_killed_beside_the_end_of_a_stream_tells_it_again(
    killable, baseline, point, times
):
    skip_unless_streamed(killable)
    assert kill(killable, baseline, f"{point}:{times}")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(3))
def test_a_driver_killed_at_a_draft_or_any_other_record_changes_nothing(
    killable, baseline, when, part
):
    boundary = max(1, round((part + 0.5) / 3 * baseline.records))
    # How many drafts there are is a matter of time: a run may have fewer than another.
    while not kill(killable, baseline, f"{when}:{boundary}"):
        assert boundary > 1, f"{when}:{boundary} was not reached"
        boundary = max(1, boundary * 4 // 5)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("point", ["before", "after", "gateway.delta", "gateway.recorded"])
def test_a_driver_killed_anywhere_in_its_streams_changes_nothing(killable, baseline, point):
    if point.startswith("gateway"):
        skip_unless_streamed(killable)
    times = 1
    while kill(killable, baseline, f"{point}:{times}"):
        times += 1
    assert times > CALLS
    print(f"{times - 1} kills at {point}")


def drive_beside(killable: KillableRun, place: Path, beside) -> None:
    """Runs the driver to its end while `beside` happens."""
    codes: list[int] = []
    driving = threading.Thread(target=lambda: codes.append(killable.drive(place, paced=False)))
    driving.start()
    try:
        beside()
    finally:
        driving.join(120)
    assert codes == [0]


def same_as(baseline: Baseline, place: Path) -> None:
    assert read_samples(place / "samples.jsonl") == baseline.samples
    AgentNotes(place).check()


@pytest.mark.parametrize("call", [0, 2])
def test_an_engine_killed_while_a_reply_is_told_goes_on_with_it(killable, baseline, call):
    place = killable.fresh(f"engine-{call}")
    killable.engine.set_faults(Fault(FaultKind.HOLD, matching=f"/{call}.0.0", after=HELD_AFTER))
    seen = {}

    def kill_engine() -> None:
        wait_until(lambda: killable.engine.stats().held)
        if streams(killable):
            wait_until(lambda: call in AgentNotes(place).cut)
        seen["cut"] = AgentNotes(place).cut.get(call, "")
        seen["prompt"] = killable.engine.calls()[-1].prompt_tokens
        killable.engine.set_faults()
        killable.engine.restart()

    drive_beside(killable, place, kill_engine)
    same_as(baseline, place)
    first, *rest = killable.engine.calls()
    # What was delivered is in the prompt of what samples the rest.
    assert first.prompt_tokens >= seen["prompt"] + len(seen["cut"].encode())
    assert bool(seen["cut"]) == streams(killable)
    assert len(rest) == CALLS - call - 1
    assert len((place / "effects.pids").read_text().split()) == 1


@pytest.mark.parametrize("call", [0, 2])
def test_a_reply_whose_agent_was_killed_while_it_was_told_is_sampled_once_and_told_again(
    killable, baseline, call
):
    skip_unless_streamed(killable)
    place = killable.fresh(f"agent-{call}")
    flag = {"CRASH_AT": str(call), "CRASH_PHASE": "stream", "CRASH_ONCE": str(place / "flag")}
    (place / "effects.env").write_text(json.dumps(flag))
    killable.engine.set_faults(Fault(FaultKind.HOLD, matching=f"/{call}.0.0", after=HELD_AFTER))

    def let_go() -> None:
        wait_until(lambda: os.path.exists(flag["CRASH_ONCE"]))
        # The reply outlives its agent: the next attempt waits for its end.
        wait_until(lambda: killable.engine.stats().held)
        killable.engine.release()

    drive_beside(killable, place, let_go)
    same_as(baseline, place)
    message = AgentNotes(place)
    assert len({pid for pid, _ in message.pieces}) == 2
    killed = next(iter(message.pieces))[0]
    delivered, (whole,) = message.pieces[killed, call], message.whole[call]
    assert 0 < len(delivered) < len(whole)
    assert len(killable.engine.requests()) == CALLS
