"""A run that could not be recorded, read again or worked on is refused, with the reason."""

import math

import msgspec
import pytest

from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.run import MAX_SAMPLES, MAX_TRAJECTORIES, RunSpec
from holdfast.records.sampling import Sampling
from support import records as builders


def spec(**changes: object) -> RunSpec:
    what = {"name": "r", "samples": 1, "model": "m", "sampling": Sampling(), "seed": 1}
    code = {"rollout": "solve", "scorer": "", "renderer": "bytes", "tasks": "t"}
    return RunSpec(**{**what, **code, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": "1"}, "seed must be a whole number, not '1'"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ({"seed": True}, "seed must be a whole number, not True"),
        ({"seed": 10**30}, "seed must fit in 64 bits"),
        ({"seed": -(2**63) - 1}, "seed must fit in 64 bits"),
        ({"seed": 10**5000}, "seed must fit in 64 bits"),
        ({"samples": "4"}, "samples must be a whole number, not '4'"),
        ({"samples": 0}, "samples must be 1 or more, not 0"),
        ({"samples": 10**30}, "samples must fit in 64 bits"),
        ({"name": 3}, "a run's name has 1 to 200 characters and no '/': 3"),
        ({"sampling": {"max_tokens": 5}}, r"sampling is a Sampling\(…\), not {'max_tokens': 5}"),
        ({"group": "drop"}, r"group is a GroupPolicy\(…\), not 'drop'"),
    ],
)
def test_a_description_of_other_types_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=f"^{why}"):
        spec(**changes)


@pytest.mark.parametrize("seed", [None, 0, -(2**63), 2**64 - 1])
def test_what_is_not_refused_is_read_again(seed: int | None) -> None:
    item = spec(seed=seed)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=RunSpec) == item


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"max_tokens": "5"}, "max_tokens must be a whole number, not '5'"),
        ({"max_tokens": 5.0}, "max_tokens must be a whole number, not 5.0"),
        ({"max_tokens": 0}, "max_tokens must be 1 or more, not 0"),
        ({"max_tokens": 2**64}, "max_tokens must fit in 64 bits"),
        ({"temperature": "1"}, "temperature must be a number, not '1'"),
        ({"temperature": True}, "temperature must be a number, not True"),
        ({"temperature": 10**30}, "temperature must fit in 64 bits"),
        ({"temperature": -0.1}, "temperature must be 0 or more, not -0.1"),
        ({"temperature": math.inf}, "temperature must be a finite number, not inf"),
        ({"temperature": math.nan}, "temperature must be a finite number, not nan"),
        ({"top_p": None}, "top_p must be a number, not None"),
        ({"top_p": math.nan}, "top_p must be above 0 and at most 1, not nan"),
        ({"stop": "END"}, "stop is a tuple of texts"),
        ({"stop": (1,)}, "stop is a tuple of texts"),
        ({"json": {"type": "object"}}, "json is True, False, or the text of a JSON schema"),
        ({"reasoning_effort": 3}, "reasoning_effort is a word like low, medium or high, not 3"),
    ],
)
def test_sampling_of_other_types_or_without_bounds_is_refused(
    changes: dict[str, object], why: str
) -> None:
    with pytest.raises(UsageError, match=f"^{why}"):
        Sampling(**changes)  # type: ignore[arg-type]


def test_a_list_of_stops_is_as_good_as_a_tuple() -> None:
    sampling = Sampling(stop=["a", "b"])  # type: ignore[arg-type]
    assert sampling == Sampling(stop=("a", "b"))
    assert hash(sampling) == hash(Sampling(stop=("a", "b")))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"refill": "1"}, "group refill must be a whole number, not '1'"),
        ({"refill": -1}, "group refill must be 0 or more, not -1"),
        ({"at_least": 0}, "group at_least must be 1 or more, not 0"),
        ({"at_least": None}, "group at_least must be a whole number, not None"),
    ],
)
def test_a_group_policy_of_other_types_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=f"^{why}"):
        GroupPolicy(**changes)  # type: ignore[arg-type]


def test_a_run_has_a_bound_that_is_told() -> None:
    most = spec(samples=MAX_SAMPLES)
    most.check(tasks=MAX_TRAJECTORIES // MAX_SAMPLES)
    with pytest.raises(UsageError, match="a task has at most 1,000,000 samples, not 1,000,001"):
        spec(samples=MAX_SAMPLES + 1).check(tasks=1)
    with pytest.raises(UsageError, match=r"11 tasks with 1,000,000 samples each are 11,000,000"):
        most.check(tasks=11)


def test_a_group_cannot_have_more_valid_members_than_members() -> None:
    spec(samples=5, group=GroupPolicy(at_least=5)).check(tasks=1)
    with pytest.raises(UsageError, match=r"at least 5 valid members .*: it has 4, the samples"):
        spec(samples=4, group=GroupPolicy(at_least=5)).check(tasks=1)


@pytest.mark.parametrize("name", ["a\nb", "a\r", "\x1b[31m", "\0", "a\u2028b", "\x85", "\udc80"])
def test_a_name_that_breaks_lines_or_terminals_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no control characters or line breaks") as caught:
        spec(name=name).check(tasks=1)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["first", "ein Lauf, größer", "走る", "a[b]-2", "👩‍🔬"])
def test_names_in_any_script_are_names(name: str) -> None:
    spec(name=name).check(tasks=1)


def test_what_is_recorded_already_is_read_whatever_is_refused_now() -> None:
    old = spec(name="a\nb", group=GroupPolicy(at_least=5))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=RunSpec) == old


def test_a_choice_that_differs_is_told_by_its_name() -> None:
    recorded, request = builders.spec(), builders.spec(group=GroupPolicy(shortfall=Shortfall.DROP))
    assert recorded.differences(request) == ["group.shortfall: recorded 'partial', now 'drop'"]
