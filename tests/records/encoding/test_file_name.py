"""Names of files: one for each id, and all of them inside their folder."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.encoding.file_name import LONGEST, file_name

TEXT = st.text(st.one_of(st.sampled_from("ab/._%~AÄé\0\\"), st.characters()), max_size=250)
CLASHING = (
    *("", ".", "..", "...", "%", "%25", "%2E", "a/b", "a_b", "a%2Fb", "a\\b", "a\0b", "a\nb"),
    *("../x", "/x", "x/", "x", ".x", "-x", " x", "é" * 150, "é" * 149 + "e", "x" * 300, "x" * 301),
)


@pytest.mark.parametrize("text", ["a", "t1", "first", "gsm8k-00017", "HumanEval_3", "mod.f[x=1]~2"])
def test_a_plain_id_is_its_own_name(text):
    assert file_name(text, is_folded=False) == text


@pytest.mark.parametrize("is_folded", [True, False])
def test_ids_that_were_one_file_are_several(is_folded):
    names = [file_name(text, is_folded=is_folded) for text in CLASHING]
    assert len(set(names)) == len(CLASHING)


def test_a_long_id_cannot_be_imitated_by_another():
    name = file_name("x" * 300)
    assert len(name) == LONGEST
    assert file_name(name) != name


def test_where_case_does_not_count_names_differ_in_more():
    arguments = ("Abc", "abc", "ABC", "é", "e\u0301")
    assert len({file_name(text, is_folded=True).casefold() for text in arguments}) == len(arguments)


@given(TEXT, TEXT)
def test_two_ids_have_two_names(first, other):
    for is_folded in (True, False):
        same = file_name(first, is_folded=is_folded) == file_name(other, is_folded=is_folded)
        assert same == (first == other)


@given(TEXT)
def test_a_name_can_be_a_file_and_stays_inside(text):
    for is_folded in (True, False):
        name = file_name(text, is_folded=is_folded)
        inside = os.path.normpath(f"/folder/{name}")
        assert inside == f"/folder/{name}"
        assert Path(inside).parent == Path("/folder")
        assert len(os.fsencode(name)) <= LONGEST
        assert "\0" not in name
