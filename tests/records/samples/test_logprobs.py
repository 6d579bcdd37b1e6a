"""A sample says of which distribution the logprobs of its trained tokens are."""

import pytest
from msgspec import structs

from holdfast.records.history import History
from holdfast.records.samples.logprobs import LogprobsMode, distribution_of, mode_with, worst
from holdfast.records.samples.sample import placeholder, samples_of
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated
from support.records import finished, generated, started

RAW, TEMPERED, UNKNOWN, PROCESSED = LogprobsMode


@pytest.mark.parametrize(
    ("temperature", "top_p", "modes"),
    [
        (1.0, 1.0, [PROCESSED, PROCESSED, PROCESSED, PROCESSED]),
        (0.8, 1.0, [RAW, PROCESSED, UNKNOWN, PROCESSED]),
        (1.0, 0.9, [RAW, TEMPERED, UNKNOWN, PROCESSED]),
        (0.8, 0.9, [RAW, TEMPERED, UNKNOWN, PROCESSED]),
        # No engine gives logprobs of a distribution that has one token.
        (0.0, 1.0, [RAW, RAW, RAW, RAW]),
    ],
)
def test_what_an_engine_gives_depends_on_how_it_samples(
    temperature: float, top_p: float, modes: list[LogprobsMode]
) -> None:
    sampling = Sampling(8, temperature, top_p)
    assert [mode_with(mode, sampling) for mode in LogprobsMode] == modes


def test_a_cut_to_the_likeliest_tokens_counts_like_any_other() -> None:
    modes = [mode_with(mode, Sampling(8, top_k=20)) for mode in LogprobsMode]
    assert modes == [RAW, TEMPERED, UNKNOWN, PROCESSED]
    assert distribution_of(Sampling(8, 0.8, top_k=20)) == (
        "temperature 0.8 and top_p 1 and top_k 20"
    )


def test_of_several_the_one_that_is_least_fit_counts() -> None:
    assert worst([PROCESSED, UNKNOWN, RAW, TEMPERED]) is RAW
    assert worst([PROCESSED, UNKNOWN, TEMPERED]) is TEMPERED
    assert worst([PROCESSED, UNKNOWN]) is UNKNOWN
    assert worst([]) is PROCESSED
    assert [mode for mode in LogprobsMode if mode.is_known_to_differ] == [RAW, TEMPERED]


def step(path: str, mode: LogprobsMode, *, temperature: float = 0.8, **more: object) -> Generated:
    made = generated(path, base="" if path == "0" else "0", keep=0 if path == "0" else 5)
    return structs.replace(made, sampling=Sampling(8, temperature), logprobs_mode=mode, **more)


def mode_of(*steps: Generated) -> LogprobsMode:
    history = History([started(), *steps, finished()])
    (sample,) = samples_of(history, task="a", group="a", sample=0)
    return sample.logprobs_mode


def test_a_sample_says_what_its_trained_tokens_have() -> None:
    assert mode_of(step("0", RAW)) is RAW
    assert mode_of(step("0", PROCESSED), step("1", RAW)) is RAW
    assert mode_of(step("0", RAW, temperature=1.0), step("1", PROCESSED)) is PROCESSED
    assert mode_of(step("0", PROCESSED), step("1", RAW, trainable=False)) is PROCESSED
    assert mode_of(generated("0")) is PROCESSED, "not measured, at temperature 1"
    assert mode_of(step("0", UNKNOWN)) is UNKNOWN
    assert placeholder(task="a", group="a", sample=0).logprobs_mode is PROCESSED


@pytest.mark.parametrize(
    ("sampling", "text"),
    [
        (Sampling(8, min_p=0.1), "min_p 0.1"),
        (Sampling(8, presence_penalty=0.5), "presence_penalty 0.5"),
        (Sampling(8, repetition_penalty=1.5), "repetition_penalty 1.5"),
        (Sampling(8, logit_bias=((5, 1.0),)), "logit_bias"),
        (Sampling(8, extra_body='{"a":1}'), "extra_body"),
    ],
)
def test_at_temperature_1_what_cuts_or_bends_is_only_in_processed_logprobs(
    sampling: Sampling, text: str
) -> None:
    assert [mode_with(mode, sampling) for mode in LogprobsMode] == list(LogprobsMode)
    assert distribution_of(sampling) == f"temperature 1 and top_p 1 and {text}"


def test_where_a_reply_ends_changes_no_logprob() -> None:
    sampling = Sampling(8, stop_token_ids=(2,), ignore_eos=True, chat_template_kwargs='{"a":1}')
    assert {mode_with(mode, sampling) for mode in LogprobsMode} == {LogprobsMode.PROCESSED}
