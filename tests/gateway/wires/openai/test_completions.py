"""Legacy completions: bare prompts, as text or tokens; and how OpenAI's streams are cut."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.gateway.protocol.messages import GenerationRequest, RequestRejected, Wire
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.openai.completions import OpenAICompletions
from support.gateway.openai_answers import TEXT, answered, choice

WIRE: Wire = OpenAICompletions()


def ask(**more: Any) -> GenerationRequest:
    return WIRE.parse(json.dumps({"model": "m", "prompt": "p", **more}).encode())


def refused(**more: Any) -> RequestRejected:
    with pytest.raises(RequestRejected) as caught:
        ask(**more)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("prompt", ["once", ["once"]])
def test_a_prompt_of_text_is_the_text(prompt: Any) -> None:
    answer = ask(prompt=prompt)
    assert (answer.text, answer.prompt_ids, answer.messages) == ("once", None, ())


@pytest.mark.parametrize("prompt", [[5, 6, 0], [[5, 6, 0]]])
def test_a_prompt_of_tokens_is_the_tokens(prompt: Any) -> None:
    answer = ask(prompt=prompt)
    assert (answer.text, answer.prompt_ids) == (None, (5, 6, 0))


def test_one_token_is_a_prompt() -> None:
    assert ask(prompt=[7]).prompt_ids == (7,)
    assert ask(prompt=[[7]]).prompt_ids == (7,)


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2, 3]], ["a"] * 128])
def test_several_prompts_are_kept_in_order(prompt: Any) -> None:
    answer = ask(prompt=prompt)
    assert answer.prompts == tuple(
        token if isinstance(token, str) else tuple(token) for token in prompt
    )
    assert (answer.text, answer.prompt_ids) == (None, None)


@pytest.mark.parametrize(
    ("prompt", "n"),
    [([1, "a"], 1), (["a", 1], 1), (["a", [1]], 1), (["a", ""], 1), (["a"] * 65, 2)],
)
def test_prompts_of_different_kinds_empty_ones_and_too_many_are_refused(
    prompt: Any, n: int
) -> None:
    refusal = refused(prompt=prompt, n=n)
    assert (refusal.param, refusal.code) == ("prompt", "invalid_value")


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], None, 5, [-1], [2**31], [1.5], [True], [["a"]]]
)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    assert (refused(prompt=prompt).param or "").startswith("prompt")


def test_a_missing_prompt_is_refused() -> None:
    with pytest.raises(RequestRejected) as caught:
        WIRE.parse(b'{"model": "m"}')
    assert (caught.value.param, caught.value.code) == ("prompt", "missing_required_parameter")


def test_parameters_are_read_and_the_limit_is_the_endpoints_own() -> None:
    assert ask() == GenerationRequest("m", (), text="p", max_tokens=16)
    assert ask(
        max_tokens=3, temperature=2, top_p=1, stop="x", n=2, stream=True, logprobs=0,
        stream_options={"include_usage": True}, best_of=1, echo=False, suffix="", user="u",
    ) == GenerationRequest(
        "m", (), text="p", max_tokens=3, temperature=2.0, top_p=1.0, stop=("x",), n=2,
        stream=True, logprobs=True, include_usage=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("echo", True),
        ("suffix", "s"),
        ("best_of", 2),
        ("logprobs", 2),
        ("length_penalty", 2),
        ("bad_words", ["x"]),
        ("chat_template_kwargs", {"enable_thinking": False}),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(name: str, value: Any) -> None:
    refusal = refused(**{name: value})
    assert refusal.param == name
    assert refusal.code.startswith("unsupported")


@pytest.mark.parametrize("name", ["messages", "tools", "max_completion_tokens", "promt"])
def test_parameters_of_other_endpoints_are_unknown_here(name: str) -> None:
    refusal = refused(**{name: []})
    assert (refusal.param, refusal.code) == (name, "unknown_parameter")


def test_an_answer_has_openais_shape() -> None:
    tokens = ("Hé", "llo", "</s>")
    data = json.loads(WIRE.format_answer(ask(logprobs=1), answered(choice("Héllo", tokens=tokens))))
    assert data["id"] == "cmpl-abc123"
    assert data["object"] == "text_completion"
    assert data["choices"] == [
        {
            "index": 0,
            "text": "Héllo",
            "logprobs": {
                "tokens": list(tokens),
                "token_logprobs": [0.0, -0.25, -0.5],
                "text_offset": [0, 2, 5],
                "top_logprobs": None,
            },
            "finish_reason": "stop",
        }
    ]
    assert data["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize(
    ("reason", "message"), [("stop", "stop"), ("length", "length"), ("tool_calls", "stop")]
)
def test_a_completion_ends_by_itself_or_is_cut(reason: str, message: str) -> None:
    answer = answered(replace(choice("x"), finish_reason=reason))
    assert json.loads(WIRE.format_answer(ask(), answer))["choices"][0]["finish_reason"] == message
    ends = [json.loads(items[6:])["choices"][0] for items in WIRE.stream(ask()).end(answer)[:-1]]
    assert [end["finish_reason"] for end in ends] == [None, message]


def test_a_stream_adds_up_to_the_answer_for_every_choice() -> None:
    answer = answered(choice(TEXT), choice(""), choice("short"))
    *raw, done = WIRE.stream(ask(stream_options={"include_usage": True})).end(answer)
    assert done == b"data: [DONE]\n\n"
    *chunks, last = [json.loads(item.removeprefix(b"data: ")) for item in raw]
    texts = ["", "", ""]
    for chunk in chunks:
        assert chunk["usage"] is None
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [TEXT, "", "short"]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 50


@given(st.text(max_size=1000))
@example("x" * 100_001)
@example("x" * 319)
def test_pieces_are_few_and_together_the_text(text: str) -> None:
    texts = sse.pieces(text)
    assert "".join(texts) == text
    assert all(texts)
    assert len(texts) <= 8


@given(st.lists(st.text(max_size=30), max_size=60), st.integers(0, 400))
@example(["x" * 40] * 5, 200)
@example(["x" * 7] * 50, 350)
def test_a_text_cut_between_its_tokens_keeps_every_token_and_character(
    tokens: list[str], length: int
) -> None:
    text = "".join(tokens)[:length]
    cuts = sse.cut_at_tokens(tokens, text)
    if not text:
        assert cuts is None
        return
    assert cuts is not None
    assert "".join(piece for piece, _ in cuts) == text
    assert all(piece for piece, _ in cuts)
    assert [place for _, places in cuts for place in places] == list(range(len(tokens)))
    assert len(cuts) <= 9
    for piece, places in cuts[:-1]:
        assert "".join(tokens[place] for place in places) == piece


def test_tokens_that_do_not_spell_the_text_are_not_cut() -> None:
    assert sse.cut_at_tokens(["a", "b"], "b") is None
