"""`holdfast train --engine vllm` with a real vLLM on the CPU: killed twice, it trains every group
once, and nothing of vLLM outlives it.
"""

import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from support.conformance.engines import VLLM_PYTHON
from support.crash.lab import SIGKILLED
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
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                is_one = mark in (entry / "environ").read_bytes()
            except OSError:
                continue
            found += [int(entry.name)] if is_one else []
    return found


@pytest.mark.parametrize(
    ("mode", "points"),
    [
        ((), ("train.stepped:1", "weights.sent:1")),
        (("--async",), ("train.published:2", "train.committed:2")),
    ],
    ids=["sync", "async"],
)
def test_a_training_that_is_killed_twice_trains_each_group_once(
    mode: tuple[str, ...], points: tuple[str, ...], tmp_path: Path
) -> None:
    training = Training(tmp_path / "training")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    options = (*vllm_options(), *mode)
    for point in points:
        code, _, err = training.train(*options, crash=point, **env)
        assert code == SIGKILLED or mode, f"{point}: {err}"
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
