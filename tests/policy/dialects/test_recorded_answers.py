"""What vLLM 0.32 said, as recorded, is read to its exact tokens, versions, messages and errors."""

from array import array
from typing import Any

import pytest

from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion, Request
from holdfast.records.errors import (
    BadAnswer,
    BadRequest,
    ContextOverflow,
    EngineUnavailable,
    HoldfastError,
    PolicyRefused,
)
from holdfast.records.message import FunctionCall, ToolCall, user
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSource, VersionSpan
from support.policy.answers import logprobs_of
from support.policy.canned_server import Answer
from support.policy.clients import ONCE, QUICK, ids, logprobs, sample
from support.policy.recordings import filled, recorded

PROMPT = array("i", [998, 369, 264, 300, 10, 366, 14, 1427, 347])
UNKNOWN = VersionSource.UNKNOWN


def request(max_tokens: int = 2000, *, seed: int | None = 7) -> Request:
    return Request(PROMPT, Sampling(max_tokens), seed, "r", messages=(user("hi there"),))


def read(answer: Any, *, kind: Kind = Kind.VLLM, status: int = 200) -> Completion:
    reply = Answer(status, answer)
    return sample(reply, body=request(), kind=kind, model="tiny", retry=ONCE)[0]


# --- /v1/completions


def test_a_recorded_answer_is_read_to_its_exact_ids_and_logprobs() -> None:
    completion = read(recorded("completions_ids_logprobs0")["response"])
    assert ids(completion) == [1397, 1961, 1203, 1541]
    # vLLM's logprobs are float32 written out: they survive our float32 without a change.
    assert logprobs(completion) == [
        -7.926401615142822,
        -7.6821370124816895,
        -7.380552291870117,
        -7.664452075958252,
    ]
    assert completion.finish_reason == "length"
    assert completion.versions == (VersionSpan("", 0, 4, UNKNOWN),)


def test_logprobs_of_other_candidates_are_not_taken_for_the_sampled_ones() -> None:
    completion = read(recorded("completions_ids_logprobs")["response"])
    assert ids(completion) == [1397, 1961, 1203, 1541, 883, 235]
    assert logprobs(completion)[-2:] == [-7.80648946762085, -7.839520454406738]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("completions_n3", "3 choices"),
        ("completions_batch_prompts", "2 choices"),
        ("completions_prompt_logprobs", "no logprobs"),
        ("completions_return_tokens_as_ids", "no token_ids"),
        ("x_request_id", "no token_ids"),
    ],
)
def test_a_recorded_answer_to_another_question_is_refused(name: str, what: str) -> None:
    with pytest.raises(BadAnswer, match=what):
        read(recorded(name)["response"])


def test_a_recorded_abort_gives_the_tokens_to_go_on_from() -> None:
    aborted = filled("abort_completions")
    rest = recorded("completions_ids_logprobs0")["response"]
    partial = aborted["choices"][0]["token_ids"]
    rest["choices"][0]["prompt_token_ids"] = [*PROMPT, *partial]
    rest["usage"]["prompt_tokens"] = 9 + 118
    completion, bodies = sample(
        Answer(body=aborted),
        Answer(body=rest),
        body=request(seed=None),
        model="tiny",
        retry=QUICK,
    )
    assert len(partial) == 118
    assert bodies[1]["prompt"] == [*PROMPT, *partial]
    assert bodies[1]["max_tokens"] == 2000 - 118
    assert ids(completion) == [*partial, 1397, 1961, 1203, 1541]
    assert logprobs(completion)[:119] == [*logprobs_of(partial), -7.926401615142822]
    assert (completion.finish_reason, completion.seams) == ("length", (118,))


def test_a_recorded_abort_alone_is_the_engines_failure() -> None:
    with pytest.raises(EngineUnavailable, match="abort"):
        read(filled("abort_completions"))


# --- /inference/v1/generate


def test_a_recorded_token_in_token_out_answer_is_read_with_its_version() -> None:
    completion = read(recorded("generate")["response"], kind=Kind.VLLM_GENERATE)
    assert ids(completion) == [1397, 615, 1203, 488, 1404]
    assert logprobs(completion) == [
        -7.713393211364746,
        -7.330495357513428,
        -7.306471347808838,
        -7.85492467880249,
        -7.4658966064453125,
    ]
    assert completion.finish_reason == "length"
    assert completion.versions == (VersionSpan("default", 0, 5, VersionSource.ENGINE),)


def test_a_recorded_switch_of_weights_splits_the_versions_where_it_happened() -> None:
    answer = filled("generate_two_versions")
    completion = read(answer, kind=Kind.VLLM_GENERATE)
    assert len(ids(completion)) == 1200
    assert completion.versions == (VersionSpan("v1", 0, 281), VersionSpan("v2", 281, 1200))
    assert logprobs(completion) == logprobs_of(answer["choices"][0]["token_ids"])


def test_the_versions_of_a_recorded_abort_stay_with_its_tokens() -> None:
    aborted, rest = filled("abort_generate"), recorded("generate")["response"]
    rest["usage"]["prompt_tokens"] = 9 + 117
    completion, bodies = sample(
        Answer(body=aborted),
        Answer(body=rest),
        body=request(seed=None),
        kind=Kind.VLLM_GENERATE,
        model="tiny",
    )
    assert bodies[1]["token_ids"] == [*PROMPT, *aborted["choices"][0]["token_ids"]]
    assert bodies[1]["sampling_params"]["max_tokens"] == 2000 - 117
    assert completion.versions == (VersionSpan("v2", 0, 117), VersionSpan("default", 117, 122))
    assert completion.seams == (117,)


def test_a_recorded_refusal_of_the_scale_out_wire_is_a_refusal() -> None:
    recording = recorded("generate_disabled")
    with pytest.raises(PolicyRefused, match="--enable-scale-out"):
        read(recording["response"], kind=Kind.VLLM_GENERATE, status=recording["status"])


# --- /v1/chat/completions


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("chat_logprobs_token_ids", " as Ex )cause outputs", "length"),
        ("chat_tools_auto", " TheTS We Callablearcheduler\ufffd needed", "length"),
    ],
)
def test_a_recorded_message_is_read(name: str, content: str, reason: str) -> None:
    completion = read(recorded(name)["response"], kind=Kind.CHAT)
    assert completion.message is not None
    assert (completion.message.content, completion.finish_reason) == (content, reason)
    assert (completion.ids, completion.logprobs, completion.versions) == (b"", b"", ())


@pytest.mark.parametrize(
    ("name", "number", "arguments", "reason"),
    [
        ("chat_tools_named", "923e31f8785f00fd", "1.162e+18", "stop"),
        ("chat_tools_required", "8e3890d68de6630d", "2389201630810037320", "length"),
    ],
)
def test_a_recorded_tool_call_is_read_with_its_id_and_arguments(
    name: str, number: str, arguments: str, reason: str
) -> None:
    completion = read(recorded(name)["response"], kind=Kind.CHAT)
    assert completion.message is not None
    assert completion.message.tool_calls == (
        ToolCall(f"chatcmpl-tool-{number}", FunctionCall("get_weather", arguments)),
    )
    assert completion.finish_reason == reason


def test_two_recorded_messages_are_not_one() -> None:
    with pytest.raises(BadAnswer, match="2 choices"):
        read(recorded("chat_n2")["response"], kind=Kind.CHAT)


def test_a_recorded_abort_of_a_chat_is_the_engines_failure_and_its_message_is_dropped() -> None:
    whole = recorded("chat_logprobs_token_ids")["response"]
    completion, bodies = sample(
        Answer(body=recorded("abort_chat")),
        Answer(body=whole),
        body=request(),
        kind=Kind.CHAT,
        model="tiny",
    )
    assert bodies[0] == bodies[1]
    assert completion.message is not None
    assert completion.message.content == " as Ex )cause outputs"
    assert completion.seams == ()


# --- refusals


@pytest.mark.parametrize(
    ("name", "kind", "error", "says"),
    [
        ("err_too_long", Kind.VLLM, ContextOverflow, "maximum context length is 2048"),
        ("err_unknown_model", Kind.VLLM, PolicyRefused, "`nope` does not exist"),
        ("err_bad_param", Kind.VLLM, BadRequest, "temperature must be non-negative"),
        ("err_bad_token_id", Kind.VLLM, BadRequest, "999999 is out of vocabulary"),
        ("err_malformed", Kind.CHAT, BadRequest, "Input should be a valid list"),
        ("chat_tools_auto_refused", Kind.CHAT, BadRequest, "--enable-auto-tool-choice"),
    ],
)
def test_a_recorded_refusal_is_the_error_that_says_what_to_do(
    name: str, kind: Kind, error: type[HoldfastError], says: str
) -> None:
    recording = recorded(name)
    with pytest.raises(error, match=says) as caught:
        read(recording["response"], kind=kind, status=recording["status"])
    assert not caught.value.retryable
