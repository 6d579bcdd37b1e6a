"""What is kept of a prompt is never taken for the beginning of another one that only looks so."""

from array import array

import pytest
from test_spelling import written

from holdfast.policy.dialects.prompt_json import Spellings


@pytest.mark.parametrize("code", ["q", "Q", "h"])
def test_numbers_of_another_size_are_other_numbers(code: str) -> None:
    spellings = Spellings(least=1)
    kept = array("i", [1, 0, 2, 0])
    assert written(spellings, kept, "home") == b"[1,0,2,0]"
    # The same bytes to begin with.
    other: array[int] = array(code)
    other.frombytes(kept.tobytes())
    other.append(7)
    assert written(spellings, other, "home") == str(other.tolist()).replace(" ", "").encode()
    assert written(spellings, kept + array("i", [3]), "home") == b"[1,0,2,0,3]"


def test_nothing_at_all_can_be_gone_on_with() -> None:
    spellings = Spellings(least=0)
    for ids, text in (([], b"[]"), ([5], b"[5]"), ([5, 6], b"[5,6]")):
        assert written(spellings, array("i", ids), "home") == text
