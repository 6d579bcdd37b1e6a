"""Tinker's own `Datum` of converted samples."""

import random

import tinker
from made_samples import make

from holdfast.convert import to_tinker


def test_a_real_datum():
    chance = random.Random(1)
    samples = [make("a", number, float(number % 2), chance) for number in range(4)]
    for datum, sample in zip(to_tinker(samples), samples, strict=True):
        real = datum.datum()
        assert isinstance(real, tinker.Datum)
        assert real.model_input.length == len(sample.token_ids) - 1
        inputs = {name: value.data for name, value in real.loss_fn_inputs.items()}
        assert inputs["target_tokens"] == sample.token_ids[1:]
        assert [bool(value) for value in inputs["advantages"]] == [
            bool(bit) for bit in sample.loss_mask[1:]
        ]
        assert sum(span.length for span in real.loss_fn_input_spans) == len(sample.token_ids) - 1
        weighted = datum.datum(weights=True).loss_fn_inputs
        assert weighted["weights"].data == sample.loss_mask[1:]
