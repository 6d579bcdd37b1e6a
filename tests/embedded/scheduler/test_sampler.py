"""Drawing tokens: the right distribution, its logprobs, and nothing but seed and place."""

import math
from collections import Counter

import pytest
import torch

from holdfast.embedded.scheduler import sampler
from holdfast.embedded.scheduler.generation import Drawn, TokenSampling

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.0, float("-inf"), 0.5])


def draw(*, position: int = 0, logits: torch.Tensor = LOGITS, **changes: float) -> Drawn:
    sampling = TokenSampling(max_tokens=1, **changes)  # type: ignore[arg-type]
    (drawn,) = sampler.draw(logits[None], [(sampling, position)])
    assert drawn is not None
    return drawn


def frequencies(count: int = 4000, **changes: float) -> dict[int, float]:
    sampling = TokenSampling(max_tokens=1, seed=3, **changes)  # type: ignore[arg-type]
    drawn = sampler.draw(LOGITS.expand(count, -1), [(sampling, place) for place in range(count)])
    return {token: n / count for token, n in Counter(item.token for item in drawn if item).items()}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_they_are_likely(temperature: float) -> None:
    expected = (LOGITS.double() / temperature).softmax(-1).tolist()
    shares = frequencies(temperature=temperature)
    for token, probability in enumerate(expected):
        assert shares.get(token, 0.0) == pytest.approx(probability, abs=0.03)
    assert 5 not in shares, "a token without probability"


def test_logprobs_are_of_the_distribution_after_temperature() -> None:
    for place in range(20):
        drawn = draw(position=place, temperature=0.7)
        expected = (LOGITS.double() / 0.7).log_softmax(-1)[drawn.token]
        assert drawn.logprob == pytest.approx(float(expected), abs=1e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    probabilities = LOGITS.double().softmax(-1)
    # Tokens 1 and 4 tie: the smaller id comes first.
    limit = float(probabilities[0] + probabilities[1]) - 1e-9
    assert set(frequencies(count=500, top_p=limit)) == {0, 1}
    assert set(frequencies(count=500, top_p=limit + 2e-9)) == {0, 1, 4}
    assert set(frequencies(count=50, top_p=1e-6)) == {0}


def test_logprobs_after_top_p_sum_to_one_over_what_is_kept() -> None:
    kept = {draw(position=place, top_p=0.7).token: place for place in range(300)}
    mass = sum(math.exp(draw(position=place, top_p=0.7).logprob) for place in kept.values())
    assert mass == pytest.approx(1.0, abs=1e-6)
    others = draw(top_p=0.7, logprobs=7).top
    assert sum(math.isfinite(item.logprob) for item in others) == len(kept)


def test_greedy_takes_the_likeliest_and_tells_the_logprob_at_temperature_1() -> None:
    drawn = draw(temperature=0.0, top_p=0.1)
    assert (drawn.token, drawn.rank) == (0, 1)
    assert drawn.logprob == pytest.approx(float(LOGITS.double().log_softmax(-1)[0]), abs=1e-6)


def test_candidates_are_the_likeliest_in_order() -> None:
    drawn = draw(logprobs=3)
    assert [(item.token, item.rank) for item in drawn.top] == [(0, 1), (1, 2), (4, 3)]


def test_a_row_is_drawn_the_same_among_any_others() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 1001)
    requests = [
        (TokenSampling(max_tokens=1, seed=i, temperature=0.5 + i / 20, top_p=1 - i / 100), 10 * i)
        for i in range(40)
    ]
    together = sampler.draw(logits, requests)
    assert together == [sampler.draw(logits[i : i + 1], [requests[i]])[0] for i in range(40)]
    assert together[::-1] == sampler.draw(logits.flip(0), requests[::-1])


def test_logits_that_are_no_numbers_give_no_token() -> None:
    spoiled = LOGITS.clone()
    spoiled[3] = float("nan")
    requests = [(TokenSampling(max_tokens=1), 0), (TokenSampling(max_tokens=1, temperature=0.0), 0)]
    good, bad = LOGITS[None], spoiled[None]
    results = sampler.draw(torch.cat((bad, good, bad)), [requests[0], requests[0], requests[1]])
    assert [result is None for result in results] == [True, False, True]


def test_noise_is_a_function_of_seed_and_position() -> None:
    drawn = [sampler.uniform(seed, place) for seed in range(-3, 60) for place in range(60)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 < item < 1 for item in drawn)
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, abs=0.02)
    assert sampler.uniform(7, 11) == sampler.uniform(7, 11) == 0.1990511341532949


def test_choice_0_has_the_requests_own_seed_and_others_have_others() -> None:
    assert sampler.derive_seed(7, 0) == 7
    seeds = [sampler.derive_seed(seed, choice) for seed in range(20) for choice in range(1, 20)]
    assert len(set(seeds)) == len(seeds)
    assert all(sampler.SEED_LEAST <= seed <= sampler.SEED_MOST for seed in seeds)


# --- what cuts and bends the distribution

TEXT = ([1, 4, 4, 0, 0, 0, 6], 3)
"""Tokens so far, of which three are the prompt's."""


def bent(**changes: object) -> torch.Tensor:
    """The logprobs of all tokens, from those that are told beside a drawn one."""
    sampling = TokenSampling(max_tokens=1, logprobs=7, **changes)  # type: ignore[arg-type]
    (drawn,) = sampler.draw(LOGITS[None], [(sampling, 0)], [TEXT])
    assert drawn is not None
    result = torch.full((7,), float("-inf"))
    for candidate in drawn.top:
        if candidate.token < 7:
            result[candidate.token] = candidate.logprob
    return result


def expected(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(-1).float()


def test_a_bias_is_added_to_logits() -> None:
    logits = LOGITS.clone()
    logits[1] += 2
    logits[3] -= 100
    torch.testing.assert_close(bent(logit_bias=((1, 2.0), (3, -100.0))), expected(logits))
    assert 1 not in frequencies(logit_bias=((1, -100.0),))


def test_penalties_count_the_tokens_of_the_reply_alone() -> None:
    logits = LOGITS.clone()
    logits[0] -= 0.5 + 3 * 0.25
    logits[6] -= 0.5 + 0.25
    tensor = bent(presence_penalty=0.5, frequency_penalty=0.25)
    torch.testing.assert_close(tensor, expected(logits))


def test_a_repetition_is_one_of_the_prompt_too() -> None:
    logits = LOGITS.clone()
    for token in (0, 1, 4, 6):
        logits[token] = logits[token] / 2 if logits[token] > 0 else logits[token] * 2
    torch.testing.assert_close(bent(repetition_penalty=2.0), expected(logits))


def test_min_p_leaves_out_what_is_below_its_share_of_the_likeliest() -> None:
    share = math.exp(-1)
    assert set(frequencies(count=500, min_p=share - 1e-9)) == {0, 1, 4}
    assert set(frequencies(count=500, min_p=share + 1e-9)) == {0}
    assert set(frequencies(count=50, min_p=1.0)) == {0}


def test_top_k_keeps_the_likeliest_and_the_smaller_id_of_two_alike() -> None:
    assert set(frequencies(count=500, top_k=1)) == {0}
    assert set(frequencies(count=500, top_k=2)) == {0, 1}
    assert set(frequencies(count=500, top_k=3)) == {0, 1, 4}
    assert frequencies(count=500, top_k=99) == frequencies(count=500)


def test_top_p_is_a_share_of_what_top_k_and_min_p_left() -> None:
    kept = LOGITS[[0, 1]].double().softmax(-1)
    limit = float(kept[0])
    assert set(frequencies(count=500, top_k=2, top_p=limit - 1e-9)) == {0}
    assert set(frequencies(count=500, top_k=2, top_p=limit + 1e-9)) == {0, 1}
    mass = bent(top_k=3, min_p=0.2, top_p=0.95).exp().sum()
    assert float(mass) == pytest.approx(1.0, abs=1e-6)


def test_greedy_takes_the_likeliest_of_what_is_bent() -> None:
    sampling = TokenSampling(max_tokens=1, temperature=0.0, frequency_penalty=1.0, top_k=1)
    (drawn,) = sampler.draw(LOGITS[None], [(sampling, 0)], [TEXT])
    assert drawn is not None
    assert drawn.token == 1


def test_a_row_with_everything_is_drawn_the_same_among_any_others() -> None:
    torch.manual_seed(0)
    logits, count = torch.randn(24, 1001), 24
    requests = [
        (
            TokenSampling(
                max_tokens=1,
                seed=i,
                temperature=0.5 + i / 20,
                top_p=1 - i / 100,
                top_k=(0, 5, 300)[i % 3],
                min_p=(0.0, 0.01)[i % 2],
                presence_penalty=(0.0, 0.7, -0.3, 0.0)[i % 4],
                frequency_penalty=(0.1, 0.0)[i % 2],
                repetition_penalty=(1.0, 1.3, 0.8)[i % 3],
                logit_bias=((i, 3.7), (2 * i + 50, -1.1)),
            ),
            10 * i,
        )
        for i in range(count)
    ]
    texts = [(torch.randint(0, 1001, (10 * i + 1,)).tolist(), 5 * i) for i in range(count)]
    together = sampler.draw(logits, requests, texts)
    alone = [sampler.draw(logits[i : i + 1], [requests[i]], [texts[i]])[0] for i in range(count)]
    assert together == alone
    assert together[::-1] == sampler.draw(logits.flip(0), requests[::-1], texts[::-1])
