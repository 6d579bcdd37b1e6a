"""Ranks of a training are killed: the others end with the cause, and the same command goes on."""

import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.crash.killable_run import SIGKILLED
from support.crash.training import STEPS, Training, Witness, cpu_seconds, one_line

# Looked for, not imported: this process computes nothing.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="the extra `train`")

LOSS = '''
import os
import signal
from pathlib import Path

from torch import distributed

from holdfast.training.objective.losses import policy_loss

calls = 0


def loss(batch, objective):
    """Says which process has which rank, and kills the one that it is told to, once."""
    global calls
    calls += 1
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    Path(f"rank-{rank}.pid").write_text(str(os.getpid()))
    if os.environ.get("KILL") == f"{rank}:{calls}" and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return policy_loss(batch, objective)
'''
OWN = ("--loss", "own.py:loss")
TWO = (*OWN, "--ranks", "2")
ROWS = ("--row-tokens", "128")
"""So that each rank has rows in every step."""
STOPPED = 5
DEADLINE = 120.0


class RankedTraining(Training):
    """Two ranks."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        (folder / "own.py").write_text(LOSS)

    def pid(self, rank: int) -> int:
        return int((self.folder / f"rank-{rank}.pid").read_text())

    def wait_for_rank(self, rank: int, process: "subprocess.Popen[str]") -> int:
        """Until it computes; the training itself, if it ends before: all its steps were done."""
        path = self.folder / f"rank-{rank}.pid"
        deadline = time.monotonic() + DEADLINE
        while not (path.exists() and path.read_text()):
            if process.poll() is not None:
                return process.pid
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return self.pid(rank)

    def assert_gone(self, rank: int) -> None:
        """At once, not by a deadline of a collective, which is half an hour."""
        pid, deadline = self.pid(rank), time.monotonic() + DEADLINE
        while _is_running(pid):
            assert time.monotonic() < deadline, f"rank {rank} is left"
            time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill_after(seconds: float, pid: int) -> None:
    """Of CPU; nothing if it ends before."""
    try:
        until = cpu_seconds(pid) + seconds
        while _is_running(pid) and cpu_seconds(pid) < until:
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> RankedTraining:
    training = RankedTraining(tmp_path_factory.mktemp("undisturbed"))
    code, _, err = training.train(*TWO, *ROWS)
    assert code == 0, err
    assert training.pid(0) != training.pid(1)
    return training


def assert_same(training: Training, undisturbed: Training) -> None:
    assert training.metrics() == undisturbed.metrics()
    assert training.final() == undisturbed.final()
    assert training.sampled() == undisturbed.sampled()
    assert training.ledger()[1] == undisturbed.ledger()[1]
    assert {end for _, end, _, _ in training.ledger()[0]} == {"trained"}


@pytest.mark.timeout(900)
def test_a_killed_rank_ends_the_others_and_changes_nothing(undisturbed, tmp_path):
    training = RankedTraining(tmp_path)
    witness = Witness(training)
    code, _, err = training.train(*TWO, *ROWS, KILL="1:2")
    assert code == STOPPED, err
    assert one_line(err) == "holdfast: rank 1 of 2 has ended: killed by SIGKILL"
    witness.look()
    code, _, err = training.train(*TWO, *ROWS, crash="train.stepped:1")
    assert code == SIGKILLED, err
    training.assert_gone(1)
    witness.look()
    code, _, err = training.train(*TWO, *ROWS)
    assert code == 0, err
    assert_same(training, undisturbed)
    training.assert_gone(1)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", ["0:1", "1:1", "0:3", "1:3"])
def test_a_kill_of_either_rank_in_a_step_changes_nothing(undisturbed, tmp_path, kill):
    training = RankedTraining(tmp_path)
    code, _, err = training.train(*TWO, *ROWS, KILL=kill)
    assert code == (SIGKILLED if kill.startswith("0") else STOPPED), err
    training.assert_gone(1)
    code, _, err = training.train(*TWO, *ROWS)
    assert code == 0, err
    assert_same(training, undisturbed)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "point",
    [
        *("train.batch:1", "train.stepped:2", "weights.written:1", "weights.written:2"),
        *("checkpoint.file:2", "checkpoint.renamed:1", "train.committed:2", "train.published:1"),
    ],
)
def test_a_kill_of_rank_0_at_every_phase_changes_nothing(undisturbed, tmp_path, point):
    training = RankedTraining(tmp_path)
    code, _, err = training.train(*TWO, *ROWS, crash=point)
    assert code == SIGKILLED, err
    if (tmp_path / "rank-1.pid").exists():
        training.assert_gone(1)
    code, _, err = training.train(*TWO, *ROWS)
    assert code == 0, err
    assert_same(training, undisturbed)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_ten_random_kills_of_ranks_change_nothing(undisturbed, tmp_path):
    chance = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    training = RankedTraining(tmp_path)
    for _ in range(10):
        (tmp_path / "rank-1.pid").unlink(missing_ok=True)
        process = training.start(*TWO, *ROWS)
        victim = chance.choice([0, 1])
        pid = training.wait_for_rank(1, process) if victim else process.pid
        _kill_after(chance.uniform(0, 1.0), pid)
        _, err = process.communicate()
        # Where its peer is gone in the middle of a collective, torch may abort: as good as killed.
        assert process.returncode in (0, STOPPED, SIGKILLED, -signal.SIGABRT), err
        if process.returncode == STOPPED:
            assert "rank 1 of 2 has ended: killed by SIGKILL" in one_line(err)
    code, _, err = training.train(*TWO, *ROWS)
    assert code == 0, err
    assert_same(training, undisturbed)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_rank_that_dies_between_two_steps_is_noticed_there(tmp_path):
    training = RankedTraining(tmp_path)
    process = training.start(*TWO, *ROWS, "--eval-every", "1")
    os.kill(training.wait_for_rank(1, process), signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == STOPPED
    assert "rank 1 of 2 has ended: killed by SIGKILL" in one_line(err)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_trainer_whose_rank_died_is_restarted_beside_its_rollouts(tmp_path):
    training = RankedTraining(tmp_path)
    code, out, err = training.train(*TWO, *ROWS, "--async", KILL="1:2")
    assert code == 0, err
    assert (tmp_path / "killed").exists()
    assert f"trained {STEPS} steps" in out
    assert {end for _, end, _, _ in training.ledger()[0]} == {"trained"}


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2])
def test_torchrun_starts_the_same_training(undisturbed, tmp_path, size):
    training = RankedTraining(tmp_path)
    _, *arguments = training.command(*OWN, *ROWS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    # Without `--`, it takes `--run` for an abbreviation of an option of its own.
    command = [*launcher, "-m", "--", *arguments[1:]]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if size == 2:
        assert_same(training, undisturbed)
    else:
        assert not (tmp_path / "rank-1.pid").exists()


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_ranks_goes_on(tmp_path, first, then):
    training = RankedTraining(tmp_path)
    ranks = [(*OWN, *ROWS, "--ranks", str(number)) for number in (first, then)]
    code, _, err = training.train(*ranks[0], crash="train.committed:1")
    assert code == SIGKILLED, err
    code, out, err = training.train(*ranks[1])
    assert code == 0, err
    assert f"trained {STEPS} steps" in out
    assert {end for _, end, _, _ in training.ledger()[0]} == {"trained"}
