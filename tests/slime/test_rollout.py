"""slime's contract: the same rollout for the same id, commits with its checkpoints, samples in the
shape that it documents; and a loop that is killed at any moment."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.open_run import RunChanged
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.history import History
from holdfast.testing import FakeEngine
from support.exhaustive import points
from support.paths import TESTS
from support.slime.arguments import AGENT, arguments, evaluation

PACKAGE = TESTS / "support" / "slime" / "package"
DRIVER = TESTS / "support" / "slime" / "driver.py"


def generate(args, rollout, source, **more):
    return holdfast.slime.generate_rollout(args, rollout, source, **more)


def test_the_same_rollout_is_the_same_batch(opened, engine):
    engine.reset()
    args, source = opened()
    first = generate(args, 0, source)
    requests = engine.stats().requests
    assert [len(group) for group in first] == [2, 2]
    assert generate(args, 0, source) == first
    assert engine.stats().requests == requests, "the journal answered"
    assert generate(args, 1, source) != first


def test_samples_are_as_slime_documents_them(opened):
    args, source = opened()
    for number, group in enumerate(generate(args, 0, source)):
        for sample in group:
            assert sample.group_index == number
            assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
            assert len(sample.tokens) > sample.response_length
            assert set(sample.loss_mask) == {0, 1}, "the second prompt is not trained"
            assert sample.status.value in ("completed", "truncated")
            assert sample.prompt[0]["role"] == "user"
            assert sample.label == "fine"
    indices = [s.index for group in generate(args, 0, source) for s in group]
    assert indices == [0, 1, 2, 3]
    assert [s.index for group in generate(args, 1, source) for s in group] == [4, 5, 6, 7]


def test_save_commits_and_load_rewinds(opened):
    args, source = opened()
    batches = [generate(args, rollout, source) for rollout in range(3)]
    source.save(0)
    ends = [(str(entry.end), entry.step) for entry in source.ledger()]
    assert ends.count(("trained", 1)) == 2
    assert ends.count(("open", 3)) == 2
    source.load(0)
    assert [entry.step for entry in source.ledger()].count(None) == 4, "they come again"
    assert [generate(args, rollout, source) for rollout in (1, 2)] == batches[1:]


# --- whose run it is


def test_a_training_that_begins_does_not_get_the_samples_of_another(opened, tmp_path):
    args, source = opened()
    generate(args, 0, source)
    source.save(0)
    ledger = source.ledger()
    with pytest.raises(UsageError, match="begins anew"):
        source.load(-1)
    source.close()
    _, again = opened()
    with pytest.raises(UsageError, match="trained up to step 1, and the trainer begins anew"):
        again.load(-1)
    _, other = opened(save=str(tmp_path / "other"))
    with pytest.raises(RunChanged, match=r"checkpoints', now '.*other'"):
        other.load(-1)
    _, resumed = opened()
    resumed.load(0)
    assert resumed.ledger() == ledger


def test_without_checkpoints_every_training_has_a_run_of_its_own(opened):
    args, source = opened(save=None)
    source.load(-1)
    generate(args, 0, source)
    source.close()
    _, again = opened(save=None)
    with pytest.raises(UsageError, match="another holdfast_run"):
        again.load(-1)
    _, fresh = opened(save=None, holdfast_run="second")
    fresh.load(-1)


# --- members that fail, branches


def broken(folder: Path, label: str = "breaks") -> dict[str, str]:
    """Data of which one group has a member that fails."""
    data = folder / "broken.jsonl"
    rows = [{"input": f"do {n}", "label": "fine" if n else label} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"prompt_data": str(data), "rollout_shuffle": False, "rollout_batch_size": 2}


def test_a_placeholder_is_in_no_baseline_and_is_no_prompt(opened, tmp_path):
    args, source = opened(**broken(tmp_path))
    group, other = generate(args, 0, source)
    stand_in = group[1]
    assert (stand_in.tokens, stand_in.loss_mask) == ([0, 0], [0])
    assert stand_in.reward == group[0].reward, "the mean of the others: no logged mean moves"
    assert (stand_in.status.value, stand_in.remove_sample, stand_in.prompt) == ("aborted", True, "")
    samples = [*group, *other]
    group[0].reward = 1.0
    raw, rewards = holdfast.slime.post_process_rewards(args, samples)
    assert rewards[:2] == [0.0, 0.0], "one valid member has nothing to be compared with"
    assert len(raw) == 4


def test_what_nobody_scored_is_as_if_it_had_failed(opened, tmp_path):
    args, source = opened(**broken(tmp_path, "unscored"))
    group, other = generate(args, 0, source)
    assert [sample.remove_sample for sample in [*group, *other]] == [False, True, False, False]
    group[0].reward = 1.0
    assert holdfast.slime.post_process_rewards(args, [*group, *other])[1][:2] == [0.0, 0.0]
    plain, same = opened(
        custom_reward_post_process_path=None, holdfast_run="b", **broken(tmp_path, "unscored")
    )
    with pytest.raises(NotTrainable, match="1 valid trajectories with a reward of 2"):
        generate(plain, 0, same)


def test_a_rollout_that_nobody_scored_is_refused(opened):
    args, source = opened(holdfast_rollout=f"{AGENT}:unscored")
    with pytest.raises(NotTrainable, match=r"no trajectory of rollout 0 has a reward.*_scorer"):
        generate(args, 0, source)


def test_an_all_correct_group_with_a_failed_member_has_no_advantages(opened):
    """With the placeholder in the baseline they would be 0.5, 0.5, -1.5, 0.5."""
    from slime.utils.types import Sample

    args, _ = opened()
    rows = [Sample(group_index=0, rollout_id=n, reward=1.0) for n in range(4)]
    rows[2] = Sample(group_index=0, rollout_id=2, reward=0.0, remove_sample=True)
    assert holdfast.slime.post_process_rewards(args, rows)[1] == [0.0, 0.0, 0.0, 0.0]


def test_groups_of_unequal_size_are_normalized_by_themselves(opened):
    from slime.utils.types import Sample

    args, _ = opened(grpo_std_normalization=False)
    rows = [Sample(group_index=0, rollout_id=n, reward=float(n)) for n in range(2)]
    rows += [Sample(group_index=1, rollout_id=n, reward=5.0) for n in (2, 3, 3)]
    assert holdfast.slime.post_process_rewards(args, rows)[1] == [-0.5, 0.5, 0.0, 0.0, 0.0]


def test_without_our_normalization_a_short_group_is_refused(opened, tmp_path):
    args, source = opened(custom_reward_post_process_path=None, **broken(tmp_path))
    with pytest.raises(NotTrainable, match="post_process_rewards"):
        generate(args, 0, source)


def test_branches_share_a_rollout_and_every_member_is_a_list(opened):
    args, source = opened(holdfast_rollout=f"{AGENT}:fork")
    for group in generate(args, 0, source):
        for member in group:
            assert len(member) == 2
            assert len({sample.rollout_id for sample in member}) == 1
    plain, source = opened(
        holdfast_rollout=f"{AGENT}:fork", custom_reward_post_process_path=None, holdfast_run="b"
    )
    with pytest.raises(NotTrainable, match="branches"):
        generate(plain, 0, source)


def test_evaluations_are_runs_of_their_own(opened, tmp_path):
    args, source = opened(eval_datasets=[evaluation("held-out", tmp_path / "data.jsonl")])
    held_out = generate(args, 0, source, evaluation=True)["held-out"]
    assert len(held_out["rewards"]) == len(held_out["truncated"]) == len(held_out["samples"]) == 8
    assert source.ledger() == []


def test_every_run_is_closed_whatever_one_raises(opened, tmp_path, monkeypatch):
    args, source = opened(eval_datasets=[evaluation("held-out", tmp_path / "data.jsonl")])
    generate(args, 0, source, evaluation=True)
    generate(args, 0, source)
    thread, streams = source._thread, list(source._streams.values())
    closed = []

    def closing(stream, close):
        async def closed_badly():
            closed.append(stream)
            await close()
            raise OSError("the disk is gone")

        return closed_badly

    for stream in streams:
        monkeypatch.setattr(stream, "close", closing(stream, stream.close))
    with pytest.raises(OSError, match="the disk is gone"):
        source.close()
    assert sorted(map(id, closed)) == sorted(map(id, streams))
    assert len(closed) == 2
    assert not thread.is_running


def test_a_cancellation_is_no_sample(opened):
    """It stops whoever waits; the trajectories go on."""
    args, source = opened()
    waiting = asyncio.run_coroutine_threadsafe(
        source._training().roll_out(1, source._stream_of_tasks.draw(0, 2)), source._thread._loop
    )
    waiting.cancel()
    samples = [sample for group in generate(args, 0, source) for sample in group]
    assert len(samples) == 4
    assert all(sample.status.value != "aborted" for sample in samples)


# --- bad input


def test_bad_input(opened, tmp_path):
    args, source = opened()
    with pytest.raises(UsageError, match="--data-source-path"):
        generate(args, 0, object())
    with pytest.raises(UsageError, match="generate_rollout"):
        source.get_samples(2)
    with pytest.raises(UsageError, match="put back"):
        source.add_samples([[object()]])
    source.add_samples([])
    with pytest.raises(UsageError, match="no router"):
        opened(holdfast_policy=None)
    args, other = opened(holdfast_rollout=None, holdfast_run="x")
    with pytest.raises(UsageError, match="holdfast_rollout"):
        generate(args, 0, other)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"holdfast_policy": 3}, "holdfast_policy must be a text or a list, not 3"),
        ({"groups": 0}, "--rollout-batch-size must be 1 or more, not 0"),
        ({"samples": None}, "--n-samples-per-prompt must be a whole number, not None"),
        ({"holdfast_journal": "/no/such/x.db"}, "holdfast_journal.*no folder /no/such; make it"),
    ],
)
def test_arguments_are_refused_when_the_source_is_made(opened, more, message):
    with pytest.raises(UsageError, match=message):
        opened(**more)
    assert not Path("/no").exists()


def test_only_a_rollout_that_was_given_is_saved_or_loaded(opened):
    args, source = opened()
    for call in (source.save, source.load, lambda source_: generate(args, source_, source)):
        with pytest.raises(UsageError, match="rollout_id must be a whole number, not 'x'"):
            call("x")
    with pytest.raises(UsageError, match=r"save\(0\): the last rollout .* is none"):
        source.save(0)
    for rollout in range(2):
        generate(args, rollout, source)
    with pytest.raises(UsageError, match=r"save\(9\): the last rollout that run 'slime' .* is 1"):
        source.save(9)
    source.save(1)
    with pytest.raises(UsageError, match=r"load\(9\): the rollouts up to there"):
        source.load(9)
    source.load(1)
    assert [str(entry.end) for entry in source.ledger()].count("trained") == 4
    source.close()
    for size in (1, 3, 4):
        _, other = opened(groups=size)
        with pytest.raises(UsageError, match=rf"--rollout-batch-size {size}, .*batch size"):
            other.load(0)
    _, again = opened()
    again.load(1)


def test_rewards_that_are_none_are_refused_by_their_sample(opened):
    from slime.utils.types import Sample

    args, _ = opened()
    for rewards in (None, ["x"]):
        with pytest.raises(UsageError, match="wants the Samples of slime"):
            holdfast.slime.post_process_rewards(args, rewards)
    for reward in (float("nan"), None, "good"):
        rows = [Sample(index=7, group_index=0, rollout_id=0, reward=reward)]
        with pytest.raises(UsageError, match=r"the reward of slime's sample 7 is .*finite"):
            holdfast.slime.post_process_rewards(args, rows)


def test_two_loops_as_one_consumer(opened, engine, tmp_path):
    args, source = opened()
    generate(args, 0, source)
    script = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path\n"
        "from support.slime.arguments import arguments\n"
        "import holdfast.slime\n"
        "args = arguments(Path(sys.argv[3]), sys.argv[4])\n"
        "holdfast.slime.DataSource(args).load(-1)\n"
    )
    command = [sys.executable, "-c", script, str(PACKAGE), str(TESTS), str(tmp_path), engine.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ConsumerHeld" in done.stderr


def test_routes_of_experts_for_slime_to_replay(tmp_path):
    import holdfast.slime

    with FakeEngine(mean_length=6, dialect="sglang", experts=(3, 2, 8)) as engine:
        args = arguments(tmp_path, engine.url, use_rollout_routing_replay=True, num_layers=3)
        source = holdfast.slime.DataSource(args)
        try:
            groups = generate(args, 0, source)
        finally:
            source.close()
    for sample in [sample for group in groups for sample in group]:
        assert sample.rollout_routed_experts.shape == (len(sample.tokens) - 1, 3, 2)


def test_a_checkpoint_of_another_journal_is_refused(opened):
    _, source = opened(holdfast_run="unknown")
    with pytest.raises(UsageError, match="does not know"):
        source.load(3)


LEFT_OPEN = """
import sys
from pathlib import Path

sys.path[:0] = sys.argv[1:3]
import holdfast.slime
from support.slime.arguments import arguments

args = arguments(Path(sys.argv[3]), sys.argv[4])
source = holdfast.slime.DataSource(args)
holdfast.slime.generate_rollout(args, 0, source, False)
"""


def test_a_process_that_leaves_it_open_ends_in_silence(tmp_path, engine):
    command = [sys.executable, "-c", LEFT_OPEN, str(PACKAGE), str(TESTS), str(tmp_path), engine.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- SIGKILL

TRAINED_GROUPS = 8

POINTS = [
    *("after:31", "slime.answered:2", "stream.commit:1"),
    *("after:12", "after:50", "after:70", "after:90", "before:40"),
    *("stream.admitted:2", "stream.settled:2", "stream.reserved:3", "stream.committed:1"),
    *("slime.answered:3", "slime.answered:4"),
]


def run(folder: Path, engine: FakeEngine, *, prefetch: bool, crash: str = "") -> int:
    command = [sys.executable, str(DRIVER), str(folder), engine.url]
    command += ["--prefetch"] if prefetch else []
    environment = os.environ | ({"HOLDFAST_CRASH": crash} if crash else {})
    return subprocess.run(command, env=environment, check=False).returncode


def history(folder: Path) -> list:
    return json.loads((folder / "checkpoint.json").read_text())["history"]


async def generations(folder: Path) -> tuple[int, int]:
    """Of the groups that are trained, and of all: slime rolls out one more where none is left."""
    journal = holdfast.open_journal(folder / "holdfast.db", read_only=True)
    stored_run = await journal.find_run("slime")
    assert stored_run is not None
    trained = total = 0
    async for row, records in journal.histories(stored_run):
        turns = len(History(records).generations)
        total += turns
        trained += turns if row.ordinal < TRAINED_GROUPS else 0
    await journal.close()
    return trained, total


@pytest.fixture(scope="module")
def undisturbed(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(folder, engine, prefetch=True) == 0
    return history(folder)


@pytest.mark.parametrize("point", POINTS[: points(2, len(POINTS))])
def test_a_killed_loop_trains_the_same_once(tmp_path, engine, undisturbed, point):
    """Prefetching the next rollout, and one checkpoint for two rollouts."""
    engine.reset()
    assert run(tmp_path, engine, prefetch=True, crash=point) == -signal.SIGKILL
    checkpoint = tmp_path / "checkpoint.json"
    is_over = checkpoint.exists() and json.loads(checkpoint.read_text())["rollout"] == 3
    assert run(tmp_path, engine, prefetch=True) == 0
    assert history(tmp_path) == undisturbed
    indices = [(rollout, index) for rollout, index, _ in history(tmp_path)]
    assert len(set(indices)) == len(indices) == 16
    trained, durable = asyncio.run(generations(tmp_path))
    assert trained == 32, "two turns of sixteen trajectories"
    # At most what was in flight when it died, or was closed, was asked for twice.
    in_flight = 8 if is_over else 4
    assert engine.stats().requests <= durable + in_flight
