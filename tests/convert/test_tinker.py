"""Tinker: a datum for each branch, shifted by one; the mask is in the advantages."""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given

from holdfast.convert import from_tinker, to_tinker
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.sample import Sample
from support.convert.samples import aborted, groups, sample


@given(groups())
def test_samples_come_back(samples: list[Sample]) -> None:
    assert from_tinker(to_tinker(samples)) == [s for s in samples if s.reward is not None]


@given(groups())
def test_targets_are_shifted_and_masked_by_advantages(samples: list[Sample]) -> None:
    for datum in to_tinker(samples):
        assert len(datum.model_input) == len(datum.target_tokens) == len(datum.advantages)
        assert datum.model_input[1:] == datum.target_tokens[:-1]
        for advantage, trained in zip(datum.advantages, datum.mask, strict=True):
            assert trained or advantage == 0.0
        assert sum(span.length for span in datum.spans) == len(datum.model_input) + 1


def test_advantages_are_centred_over_valid_trajectories() -> None:
    samples = [sample("a", 0, reward=1.0), sample("a", 1, reward=0.0), sample("a", 2, reward=None)]
    data = to_tinker([*samples, aborted("a", 3)])
    assert [datum.advantages[-1] for datum in data] == [0.5, -0.5]
    own_advantages = to_tinker(samples[:2], advantages={"a/0": 3.0, "a/1": -3.0})
    assert [datum.advantages[-1] for datum in own_advantages] == [3.0, -3.0]


def test_what_it_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(NotTrainable, match="no prompt"):
        to_tinker([sample(prompt=0)])
    with pytest.raises(UsageError, match="a/0"):
        to_tinker([sample()], advantages={})


class _Datum(SimpleNamespace):
    def with_provenance(self, **spans: list[SimpleNamespace]) -> SimpleNamespace:
        return SimpleNamespace(**spans)


def test_a_datum_says_where_each_of_its_tokens_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tinker itself is in `make interop`; here only its names stand in for it."""
    library = SimpleNamespace(
        Datum=_Datum,
        ModelInput=SimpleNamespace(from_ints=list),
        SampledProvenanceSpan=SimpleNamespace,
        PromptProvenanceSpan=SimpleNamespace,
    )
    monkeypatch.setitem(sys.modules, "tinker", library)
    (datum,) = to_tinker([sample(prompt=2)])
    real = datum.datum()
    length = len(datum.model_input)
    assert sum(span.length for span in real.model_input) == length
    assert sum(span.length for span in real.loss_fn_inputs) == length
    assert next(span.offset for span in real.loss_fn_inputs) == 1, "targets are shifted by one"
