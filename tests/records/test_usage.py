"""What was used is a sum over records: of what is data, and of what is history."""

import pytest
from msgspec import structs

from holdfast.records.encoding.tokens import pack_ids
from holdfast.records.history import History
from holdfast.records.step import Drafted, Forked, Refilled
from holdfast.records.usage import NOTHING, Usage, add_usages, count_of, judge_usage, total_usage
from support.records import generated, started


def test_usages_add_up_by_model() -> None:
    left = {"a": Usage(10, 2, 4, 1), "b": Usage(1, 1)}
    summed = add_usages(left, {"a": Usage(5, 3, 0, 2)})
    assert summed == {"a": Usage(15, 5, 4, 3), "b": Usage(1, 1)}
    assert total_usage(summed) == Usage(16, 6, 4, 3)
    assert total_usage({}) == NOTHING
    assert left == {"a": Usage(10, 2, 4, 1), "b": Usage(1, 1)}


@pytest.mark.parametrize("value", [None, -1, 1.5, True, "7", 2**60, float("nan"), [1]])
def test_what_is_no_count_is_not_counted(value: object) -> None:
    assert count_of(value) is None


def test_a_whole_number_is_one_however_it_is_written() -> None:
    assert (count_of(7), count_of(7.0), count_of(0)) == (7, 7, 0)


def test_without_a_word_of_the_engine_tokens_are_counted() -> None:
    step = structs.replace(generated("0"), keep=3, usage=None)
    used = Usage(3 + len(step.delta) // 4, len(step.ids) // 4)
    assert step.counted == step.billed == used
    assert used.completion_tokens > 0


def test_an_interrupted_generation_bills_more_than_it_counts() -> None:
    step = structs.replace(generated("0"), usage=Usage(900, 80, 40, 9))
    assert step.billed == Usage(900, 80, 40, 9)
    assert step.counted == Usage(len(step.delta) // 4 + step.keep, len(step.ids) // 4)


def test_without_tokens_the_engine_is_believed() -> None:
    step = structs.replace(generated("0"), ids=b"", delta=b"", usage=Usage(7, 5, 4, 3))
    assert step.counted == Usage(7, 5, 0, 3), "a cache is not a part of the data"
    silent = structs.replace(step, usage=None, trainable=False)
    assert History([started(), silent]).uncounted_turns == 1
    assert History([started(), structs.replace(step, trainable=False)]).uncounted_turns == 0


def test_what_was_sampled_stays_used_when_it_becomes_history() -> None:
    step = structs.replace(generated("0"), usage=Usage(10, 4))
    history = History([started(), step])
    for end in (Forked("0", "why", "", 0.0), Refilled(1, "why", 0.0)):
        history.take(end)
        assert not history.generations
        assert history.used == {step.model: Usage(10, 4)}
        assert history.sampled_tokens == 0


def test_drafted_tokens_count_once() -> None:
    whole = structs.replace(generated("0"), usage=Usage(10, 5), drafted=3, ids=pack_ids([4, 5]))
    draft = Drafted("0", whole.fingerprint, 0, pack_ids([1, 2, 3]), b"", (), whole.model)
    history = History([started(), draft])
    assert history.used == {whole.model: Usage(0, 3)}, "they are paid for already"
    history.take(whole)
    assert history.used == {whole.model: Usage(10, 5)}


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shares_are_whole_and_add_up(of: int) -> None:
    whole = Usage(100, 13, 5, 1)
    shares = [whole.share(number, of=of) for number in range(of)]
    assert sum(shares, Usage()) == whole
    assert max(share.prompt_tokens for share in shares) - shares[-1].prompt_tokens <= 1


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"judge": "kind"},
        {"judge": {"model": "wise"}},
        {"judge": {"model": "wise", "usage": [1, 2]}},
        {"judge": {"model": "wise", "usage": {"prompt_tokens": "many"}}},
        {"judge": {"model": "wise", "usage": {"prompt_tokens": -3}}},
    ],
)
def test_details_of_a_scorer_of_ones_own_are_no_usage(details: dict[str, object]) -> None:
    assert judge_usage(details) == {}


def test_the_usage_of_a_judge_is_by_its_model() -> None:
    message = {"judge": {"model": "wise", "tries": 1, "usage": Usage(7, 3).as_fields()}}
    assert judge_usage(message) == {"wise": Usage(7, 3)}


def test_the_usage_of_judges_that_a_function_asked_is_added() -> None:
    used = {"wise": Usage(1, 1).as_fields(), "kind": Usage(2, 5).as_fields(), "odd": "much"}
    message = {"judge": {"model": "wise", "usage": Usage(7, 3).as_fields()}, "judge_usage": used}
    assert judge_usage(message) == {"wise": Usage(8, 4), "kind": Usage(2, 5)}


def test_what_is_left_of_a_usage_is_never_below_nothing() -> None:
    assert Usage(7, 3, 2, 1).less(Usage(2, 5, 2)) == Usage(5, 0, 0, 1)
