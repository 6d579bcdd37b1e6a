"""Routed experts as engines write them: read without NumPy, and refused where they do not fit."""

import base64
import io

import numpy as np
import pytest

from holdfast.policy.dialects.dialect import InvalidAnswer
from holdfast.policy.dialects.experts import fitted, flat_experts, npy_experts
from holdfast.records.samples.experts import ExpertRows


def npy(ndarray: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, ndarray)
    return base64.b64encode(file.getvalue()).decode()


def read(rows: ExpertRows) -> np.ndarray:
    return np.frombuffer(rows.data, f"<u{rows.size}").reshape(-1, rows.width)


@pytest.mark.parametrize(
    ("dtype", "most"), [("u1", 255), ("<u2", 511), ("<i4", 255), ("<i4", 70000)]
)
def test_numpy_files_of_vllm(dtype: str, most: int) -> None:
    result = np.random.default_rng(0).integers(0, most + 1, (7, 3, 2)).astype(dtype)
    result[0, 0, 0] = most
    rows = npy_experts(npy(result))
    assert (rows.rows, rows.layers, rows.width) == (7, 3, 6)
    assert rows.size == (1 if most < 256 else 2 if most < 65536 else 4)
    assert np.array_equal(read(rows), result.reshape(7, 6))


@pytest.mark.parametrize("most", [7, 300, 70000])
def test_flat_numbers_of_sglang(most: int) -> None:
    results = np.arange(24, dtype="<i4") % 7
    results[-1] = most
    rows = fitted(flat_experts(base64.b64encode(results.tobytes()).decode()), 4)
    assert (rows.rows, rows.layers, rows.width) == (4, 0, 6)
    assert np.array_equal(read(rows), results.reshape(4, 6))


@pytest.mark.parametrize(
    "text",
    [
        "no base64!",
        base64.b64encode(b"").decode(),
        base64.b64encode(b"\x93NUMPY\x01\x00\xff\xff").decode(),
        npy(np.zeros((2, 3), np.uint8)),
        npy(np.zeros((2, 3, 4))),
        npy(np.asfortranarray(np.zeros((2, 3, 4), np.uint8))),
        npy(np.zeros((2, 0, 4), np.uint8)),
        base64.b64encode(base64.b64decode(npy(np.zeros((2, 3, 4), np.uint8)))[:-1]).decode(),
    ],
)
def test_what_is_no_such_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidAnswer):
        npy_experts(text)


def test_rows_of_another_number_of_tokens_are_refused() -> None:
    rows = npy_experts(npy(np.zeros((7, 3, 2), np.uint8)))
    assert fitted(rows, 7) is rows
    with pytest.raises(InvalidAnswer, match="of 7 tokens, not of 8"):
        fitted(rows, 8)
    with pytest.raises(InvalidAnswer, match="5 routed experts for 2 tokens"):
        fitted(ExpertRows(0, 0, 1, bytes(5)), 2)
    with pytest.raises(InvalidAnswer, match="no 32-bit numbers"):
        flat_experts(base64.b64encode(bytes(5)).decode())
