"""The tokens are a pure function of version, seed and what came before, however they are drawn."""

import pytest

from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.testing.fake_engine.generation import FakeGeneration, FakePiece, whole
from holdfast.testing.fake_engine.tokens import Sampler, TokenLimits
from support.testing.http_client import PROMPT

LETTERS = Sampler(mean_length=40)
REPLIES = Sampler(replies=("the answer is {n}, über {n}", "no: {n} and {n} and {n}"))
LIMITS = TokenLimits(64)


def draw(
    sampler: Sampler,
    *versions: tuple[int, str],
    prompt: list[int] | None = None,
    seed: int = 1,
    limits: TokenLimits = LIMITS,
    per_piece: int = 1000,
) -> list[FakePiece]:
    """With each version as many tokens as it is given, then the last one's to the end."""
    generation = FakeGeneration(sampler, prompt or PROMPT, seed=seed, limits=limits)
    pieces = []
    for count, version in versions or ((0, "default"),):
        target = len(generation.ids) + count
        while not generation.ended and len(generation.ids) < target:
            generation.advance(min(per_piece, target - len(generation.ids)), version)
            pieces.append(generation.take())
    while not generation.ended:
        generation.advance(per_piece, versions[-1][1] if versions else "default")
        pieces.append(generation.take())
    return pieces


def put_together(pieces: list[FakePiece]) -> tuple[list[int], list[float], str]:
    ids = [token for piece in pieces for token in piece.ids]
    logprobs = [logprob for piece in pieces for logprob in piece.logprobs]
    return ids, logprobs, "".join(piece.text for piece in pieces)


def test_the_first_weights_sample_what_they_always_sampled() -> None:
    """Journals, examples and expectations of others rest on these very tokens."""
    reply = whole(Sampler(), PROMPT, seed=1, limits=LIMITS, version="default")
    assert reply.text == "  yk agp oepldfu jnf ror onibqax r hvuof ryorcj zdtdvdnqo k h  r"
    assert reply.logprobs[:4] == [-3.7578125, -1.74609375, -1.35546875, -2.87109375]


@pytest.mark.parametrize("sampler", [LETTERS, REPLIES])
@pytest.mark.parametrize("stops", [(), ("r",), ("er i", "an"), ("über",)])
@pytest.mark.parametrize("per_piece", [1, 2, 3, 7])
def test_pieces_are_the_whole(sampler: Sampler, stops: tuple[str, ...], per_piece: int) -> None:
    limits = TokenLimits(64, stop_texts=stops)
    for seed in range(10):
        (once,) = draw(sampler, seed=seed, limits=limits)
        pieces = draw(sampler, seed=seed, limits=limits, per_piece=per_piece)
        assert put_together(pieces) == (once.ids, once.logprobs, once.text)
        assert (pieces[-1].finish_reason, pieces[-1].stop) == (once.finish_reason, once.stop)
        assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert [piece.start for piece in pieces] == list(range(0, len(once.ids), per_piece))


@pytest.mark.parametrize("sampler", [LETTERS, REPLIES])
@pytest.mark.parametrize("version", ["default", "v2"])
def test_a_generation_resumed_at_any_token_goes_on_identically(
    sampler: Sampler, version: str
) -> None:
    for seed in range(5):
        (once,) = draw(sampler, (64, version), seed=seed)
        for cut in range(1, len(once.ids)):
            rest = TokenLimits(64 - cut)
            prompt = PROMPT + once.ids[:cut]
            (after,) = draw(sampler, (64, version), prompt=prompt, seed=seed, limits=rest)
            assert after.ids == once.ids[cut:]
            assert after.logprobs == once.logprobs[cut:]
            assert after.finish_reason == once.finish_reason


@pytest.mark.parametrize("sampler", [LETTERS, REPLIES])
def test_a_generation_resumed_after_a_switch_of_weights_goes_on_identically(
    sampler: Sampler,
) -> None:
    ids, logprobs, _ = put_together(draw(sampler, (9, "default"), (55, "v2")))
    assert len(ids) > 12
    for cut in range(9, len(ids)):
        (rest,) = draw(sampler, (64, "v2"), prompt=PROMPT + ids[:cut], limits=TokenLimits(64 - cut))
        assert (rest.ids, rest.logprobs) == (ids[cut:], logprobs[cut:])


@pytest.mark.parametrize("sampler", [LETTERS, REPLIES])
def test_other_weights_sample_other_tokens_and_other_logprobs(sampler: Sampler) -> None:
    texts = {draw(sampler, (64, f"v{n}"))[0].text for n in range(20)}
    assert len(texts) > 15
    (old,), (new,) = draw(sampler), draw(sampler, (64, "v2"))
    assert old.logprobs[:5] != new.logprobs[:5]


def test_a_switch_of_weights_changes_the_tokens_from_there_on_and_is_told() -> None:
    (old,) = draw(LETTERS)
    *_, last = switched = draw(LETTERS, (10, "default"), (5, "v2"), (0, "v3"))
    ids, _, _ = put_together(switched)
    assert ids[:10] == old.ids[:10]
    assert ids[10:] != old.ids[10:]
    spans = [(span.version, span.start, span.end) for span in last.versions]
    assert spans == [("default", 0, 10), ("v2", 10, 15), ("v3", 15, len(ids))]


def test_nothing_of_a_stop_string_is_ever_shown() -> None:
    limits = TokenLimits(64, stop_texts=("is 4",))
    sampler = Sampler(replies=("it is 3 and is 45",))
    pieces = draw(sampler, limits=limits, per_piece=1)
    ids, _, text = put_together(pieces)
    assert (text, pieces[-1].stop) == ("it is 3 and ", "is 4")
    assert bytes(ids) == b"it is 3 and is 4"
    assert pieces[2].ids
    assert not pieces[2].text, "what may become the stop string is held back"


def test_a_character_is_shown_when_its_last_byte_is_there() -> None:
    pieces = draw(Sampler(replies=("aü…",)), per_piece=1)
    assert [piece.text for piece in pieces] == ["a", "", "ü", "", "", "…", ""]
    assert pieces[-1].ids == [ByteRenderer.END]


def test_an_aborted_generation_keeps_what_it_has() -> None:
    generation = FakeGeneration(LETTERS, PROMPT, seed=1, limits=LIMITS)
    generation.advance(5)
    generation.abort()
    result = generation.take()
    assert (len(result.ids), result.finish_reason) == (5, "abort")
