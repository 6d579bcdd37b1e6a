"""`holdfast train --engine vllm` with a real vLLM on the CPU: killed twice, it trains every group
once, and nothing of vLLM outlives it.
"""

import os
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from support.conformance.engines import VLLM_PYTHON
from support.crash.killable_run import SIGKILLED
from support.crash.training import STEPS, Training

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(VLLM_PYTHON not in os.environ, reason="make vllm"),
    pytest.mark.skipif(find_spec("peft") is None, reason="the extra `train`"),
]
END_SECONDS = 60.0
GAP = 1e-3
"""Between the engine's logprobs and the trainer's, both in float32."""


def vllm_options() -> tuple[str, ...]:
    more = "--enforce-eager --max-num-seqs 16 --max-model-len 1024"
    return (
        *("--engine", "vllm", "--engine-python", os.environ[VLLM_PYTHON]),
        f"--engine-options={more}",
    )


def processes_of_vllm(folder: Path) -> list[int]:
    """Of those whose environment names this test's folder for temporary files."""
    mark = f"HOLDFAST_ENGINE_PLACE={folder}".encode()
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                is_one = mark in (entry / "environ").read_bytes()
            except OSError:
                continue
            processes += [int(entry.name)] if is_one else []
    return processes


class Kill:
    """SIGKILL of a training: by itself at a point, or from outside as soon as it has published a
    number of versions."""

    def __init__(self, point: str = "", *, versions: int = 0):
        self._point = point
        self._versions = versions

    def strike(self, training: Training, *options: str, **env: str) -> None:
        process = training.start(*options, crash=self._point, **env)
        if not self._point:
            while not _has_versions(training, self._versions):
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)
            process.kill()
        _, err = process.communicate()
        assert process.returncode == SIGKILLED, err


def _has_versions(training: Training, number: int) -> bool:
    if not Path(training.journal).exists():
        return False
    try:
        return len(training.ledger()[1]) >= number
    except AssertionError:  # There is no run yet.
        return False


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        ((), (Kill("train.stepped:1"), Kill("weights.sent:1"))),
        (("--async",), (Kill(versions=1), Kill(versions=2))),
    ],
    ids=["sync", "async"],
)
def test_a_training_that_is_killed_twice_trains_each_group_once(
    mode: tuple[str, ...], kills: tuple[Kill, ...], tmp_path: Path
) -> None:
    training = Training(tmp_path / "training")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {
        "TMPDIR": str(temporary),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Kept from start to start: on a busy machine, compiling takes minutes.
        "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/holdfast-inductor-{os.geteuid()}",
    }
    options = (*vllm_options(), *mode)
    for kill in kills:
        kill.strike(training, *options, **env)
        deadline = time.monotonic() + END_SECONDS
        while left := processes_of_vllm(temporary):
            assert time.monotonic() < deadline, f"{left} outlived the training"
            time.sleep(0.2)
    code, out, err = training.train(*options, **env)
    assert code == 0, err
    assert "weights: vLLM" in out + err
    assert "ipc" in out + err
    groups, versions = training.ledger()
    assert {end for _, end, _, _ in groups} == {"trained"}
    assert len({task for task, *_ in groups}) == len(groups) == 2 * STEPS
    published = {name for _, name, _, _ in versions}
    for names in training.trained().values():
        assert names <= published
    assert all(line["kl"] < GAP for line in training.metrics() if "kl" in line)
    assert check(training.journal).findings == []
    assert processes_of_vllm(temporary) == []
