"""How tensors are cut into messages: sender and receivers have to agree."""

import pytest

pytest.importorskip("torch", reason="the extra `train`")

from holdfast.weights.carrier import Framing
from holdfast.weights.collective import TensorMeta, cut


@pytest.mark.parametrize(
    ("framing", "expected"),
    [
        (Framing.BUCKETS, [[3], [4, 2], [9], [1]]),
        (Framing.OVERFLOWING, [[3, 4], [2, 9], [1]]),
        (Framing.TENSORS, [[3], [4], [2], [9], [1]]),
    ],
)
def test_messages(framing: Framing, expected: list[list[int]]) -> None:
    metas = [TensorMeta(str(size), "uint8", (size,)) for size in (3, 4, 2, 9, 1)]
    result = [[meta.size for meta in message] for message in cut(metas, framing, limit=6)]
    assert result == expected
