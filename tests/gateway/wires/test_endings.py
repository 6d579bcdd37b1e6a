"""What ended a reply is said in the words of each API."""

import pytest

from holdfast.gateway.protocol.messages import Answer, AnswerChoice
from holdfast.gateway.wires.anthropic.messages import stop_fields
from holdfast.gateway.wires.openai.chat import usage
from holdfast.gateway.wires.openai.completions import _finish_reason
from holdfast.gateway.wires.responses.output import _CUTS, _usage, was_cut
from holdfast.records.message import Message, Role


def answered(choice: AnswerChoice, **more: int) -> Answer:
    return Answer("a", 0, "m", (choice,), prompt_tokens=9, completion_tokens=4, **more)


REPLY = Message(Role.ASSISTANT, "First, take the")


@pytest.mark.parametrize(
    ("reason", "anthropic", "completions", "responses"),
    [
        ("stop", "end_turn", "stop", None),
        ("length", "max_tokens", "length", "max_output_tokens"),
        ("content_filter", "refusal", "content_filter", "content_filter"),
    ],
)
def test_every_api_has_a_word_for_it(reason, anthropic, completions, responses) -> None:
    choice = AnswerChoice(REPLY, reason, None)
    assert stop_fields(choice)["stop_reason"] == anthropic
    assert _finish_reason(choice) == completions
    answer = answered(choice)
    assert was_cut(answer) is (responses is not None)
    assert _CUTS.get(reason) == responses


def test_the_engines_own_counts_are_passed_on() -> None:
    answer = answered(
        AnswerChoice(REPLY, "stop", None),
        cached_tokens=1,
        engine_cached_tokens=5,
        reasoning_tokens=3,
    )
    assert usage(answer)["prompt_tokens_details"] == {"cached_tokens": 5, "audio_tokens": 0}
    assert usage(answer)["completion_tokens_details"]["reasoning_tokens"] == 3
    assert _usage(answer)["output_tokens_details"] == {"reasoning_tokens": 3}
    assert answer.opening.cached_tokens == 1, "an answer begins before the engine has counted"
