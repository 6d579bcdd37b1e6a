"""Memory that another process maps: it ends with its owner, and is nobody else's."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the extra `train`")

import torch

from holdfast.weights.shared_memory import TRIAL, SharedBuffer, check_shared, read_shared

CPU = torch.device("cpu")
OTHER = """
import json, sys, torch
from holdfast.weights.shared_memory import read_shared
print(bytes(read_shared(json.loads(sys.argv[1]), torch.device("cpu")).numpy()).decode())
"""


def of(content: bytes) -> SharedBuffer:
    return SharedBuffer(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def test_another_process_reads_it() -> None:
    import json

    shared = of(b"weights")
    command = [sys.executable, "-c", OTHER, json.dumps(shared.handle)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.stdout.strip() == "weights", process.stderr


def test_what_was_read_is_a_copy_and_what_is_closed_is_gone() -> None:
    shared = of(b"weights")
    copy = read_shared(shared.handle, CPU)
    shared.close()
    assert bytes(copy.numpy()) == b"weights"
    with pytest.raises(OSError, match="No such file"):
        read_shared(shared.handle, CPU)


def test_memory_that_is_not_the_trainers_is_noticed() -> None:
    """Where processes have numbers of their own, a path may lead to another one's file."""
    check_shared(of(TRIAL).handle, CPU)
    with pytest.raises(OSError, match="other memory"):
        check_shared(of(b"else").handle, CPU)
