"""Keys: whose they are, and that nobody makes one up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.protocol.keys import PREFIX, Bearer, Keys

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


NUMBERS = st.integers(0, 2**40)


@given(NAMES, NUMBERS, NUMBERS, NUMBERS)
def test_a_key_names_its_trajectory_and_its_attempt(trajectory, epoch, attempt, binding):
    keys, bearer = Keys(), Bearer(trajectory, epoch, attempt, binding)
    assert keys.read(keys.make(bearer)) == bearer


def test_another_gateways_key_is_nobodys():
    assert Keys().read(Keys().make(Bearer("run/a/0", 1, 1))) is None


def test_every_changed_character_makes_it_nobodys():
    keys = Keys()
    key = keys.make(Bearer("run/a/0", 1, 1))
    for place in range(len(key)):
        other = "A" if key[place] != "A" else "B"
        assert keys.read(key[:place] + other + key[place + 1 :]) is None


@given(st.text(max_size=200))
def test_whatever_is_no_key_is_nobodys(text):
    keys = Keys()
    assert keys.read(text) is None
    assert keys.read(PREFIX + text) is None


@pytest.mark.parametrize("change", ["{}=", "{} ", "{}\n", "{}!", " {}", "{}==", "{}\udcff"])
def test_a_key_has_one_spelling(change):
    keys = Keys()
    assert keys.read(change.format(keys.make(Bearer("run/a/0", 1, 1)))) is None


def test_the_epoch_of_a_key_cannot_be_raised():
    keys = Keys()
    old, new = (keys.make(Bearer("run/a/0", epoch, 1)) for epoch in (1, 2))
    assert keys.read(old) != keys.read(new)
    half = (len(PREFIX) + 20, len(old))
    assert keys.read(old[: half[0]] + new[half[0] : half[1]]) is None
