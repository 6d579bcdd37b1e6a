"""What an engine is and can do is found out before any work, and kept to."""

import asyncio
from typing import Any

import pytest

from holdfast.policy.client import probe
from holdfast.policy.client.discovery import check_dialect
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion, Request
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import (
    ContextOverflow,
    EndpointDown,
    EngineUnavailable,
    PolicyRefused,
)
from holdfast.records.message import user
from support.policy.answers import (
    PATHS,
    TOKEN_KINDS,
    max_tokens_of,
    models,
    plain,
    request,
    streamed,
)
from support.policy.canned_server import Answer, Canned
from support.policy.clients import ONCE, QUICK, ids, policy_at, run
from support.policy.drafts import Kept, draft_of
from support.policy.recordings import recorded

GENERATE = PATHS[Kind.VLLM_GENERATE]
COMPLETIONS = PATHS[Kind.VLLM]
REFUSED = Answer(400, {"error": {"message": "token_ids: field required", "code": 400}})


def discovered(**messages: Answer) -> tuple[Kind, int | None, list[str]]:
    """The dialect and the longest context of an engine that says this at these paths."""

    async def main() -> tuple[Kind, int | None, list[str]]:
        async with Canned() as server, policy_at(server, kind=None) as policy:
            for path, answer in messages.items():
                server.always("/" + path.replace("__", "/"), answer)
            await policy.check()
            endpoint = policy.endpoints[0]
            assert policy.has_tokens == endpoint.dialect.has_tokens
            return (
                endpoint.dialect.kind,
                endpoint.described.max_model_len,
                [item.path for item in server.requests],
            )

    return run(main())


# --- which engine it is


def recorded_answer(name: str) -> Answer:
    recording = recorded(name)
    answer = recording["response"]
    for model in answer.get("data", ()):
        model["id"] = "m"
    return Answer(recording["status"], answer)


def test_a_recorded_vllm_without_scale_out_is_asked_for_completions() -> None:
    kind, longest, _ = discovered(
        v1__models=recorded_answer("models"),
        inference__v1__generate=recorded_answer("generate_disabled"),
        v1__completions=plain(Kind.VLLM, [5]),
    )
    assert (kind, longest) == (Kind.VLLM, 2048)


@pytest.mark.parametrize("status", [404, 405, 500, 501])
def test_an_older_vllm_is_asked_for_completions(status: int) -> None:
    message = {"v1__models": models(), "inference__v1__generate": Answer(status)}
    assert discovered(**message)[0] is Kind.VLLM


@pytest.mark.parametrize("owner", ["vllm", "holdfast"])
@pytest.mark.parametrize("status", [400, 422])
def test_an_engine_with_scale_out_is_asked_token_in_token_out(owner: str, status: int) -> None:
    kind, longest, texts = discovered(
        v1__models=models(owned_by=owner, max_model_len=77),
        inference__v1__generate=Answer(status, REFUSED.body),
    )
    assert (kind, longest) == (Kind.VLLM_GENERATE, 77)
    assert texts == ["/v1/models", GENERATE]


@pytest.mark.parametrize(
    "info", [{"context_length": 4096}, {"context_length": None, "max_total_num_tokens": 4096}]
)
@pytest.mark.parametrize("owner", ["sglang", "someone"])
def test_sglang_is_known_by_its_name_or_its_own_page(owner: str, info: dict[str, Any]) -> None:
    kind, longest, _ = discovered(
        v1__models=models(owned_by=owner),
        get_model_info=Answer(body={"model_path": "/models/m"}),
        generate=plain(Kind.SGLANG, [5]),
        get_server_info=Answer(body=info),
    )
    assert (kind, longest) == (Kind.SGLANG, 4096)


def test_sglang_that_does_not_tell_its_context_has_none_that_we_know() -> None:
    assert discovered(v1__models=models(owned_by="sglang"))[:2] == (Kind.SGLANG, None)


@pytest.mark.parametrize("owner", ["fireworks", "accounts/fireworks"])
def test_fireworks_is_known_by_its_name(owner: str) -> None:
    assert discovered(v1__models=models(owned_by=owner))[0] is Kind.FIREWORKS


def test_an_unknown_engine_that_gives_ids_and_logprobs_is_trainable() -> None:
    kind, _, _ = discovered(
        v1__models=models(owned_by="someone"), v1__completions=plain(Kind.VLLM, [5])
    )
    assert kind is Kind.VLLM


@pytest.mark.parametrize(
    "answer",
    [
        Answer(404),
        Answer(500),
        Answer(body=b"<html>"),
        Answer(body={"model": "m", "choices": [{"finish_reason": "stop", "text": "x"}]}),
        Answer(body={"error": {"message": "no prompts of ids", "code": 400}}),
    ],
)
def test_an_unknown_engine_without_ids_is_for_evaluation_only(answer: Answer) -> None:
    kind, _, _ = discovered(v1__models=models(owned_by="someone"), v1__completions=answer)
    assert kind is Kind.CHAT


# --- a dialect is chosen by an answer in it


PLAIN_MODELS = Answer(body={"data": [{"id": "m", "owned_by": "vllm"}]})
"""As vLLM has them: it does not say of which distribution its logprobs are."""


def vllm_0_26(ids: list[int]) -> Answer:
    """As vLLM 0.26 answers at /inference/v1/generate: its logprobs name no token ids."""
    content = [{"token": f"token_id:{item}", "logprob": -0.5, "top_logprobs": []} for item in ids]
    choice = {"index": 0, "token_ids": ids, "finish_reason": "length"}
    return Answer(
        body={"request_id": "r", "choices": [choice | {"logprobs": {"content": content}}]}
    )


async def chosen(server: Canned, lines: list[str]) -> Kind:
    async with policy_at(server, kind=None, notify=lines.append) as policy:
        await policy.check()
        return policy.endpoints[0].dialect.kind


def test_a_path_whose_answers_lack_ids_beside_logprobs_is_not_chosen_and_what_is_lost_is_said() -> (
    None
):
    async def main() -> None:
        async with Canned() as server:
            lines: list[str] = []
            server.always("/v1/models", PLAIN_MODELS)
            server.always(GENERATE, vllm_0_26([5]))
            server.always(COMPLETIONS, plain(Kind.VLLM, [5]))
            assert await chosen(server, lines) is Kind.VLLM
            (line,) = lines
            assert "/inference/v1/generate is unfit" in line
            assert "token_id" in line
            assert "it does not give the version of the weights" in line
            assert "it is spoken to as vllm" in line

    run(main())


async def test_a_vllm_that_gives_no_logprobs_anywhere_is_for_evaluation_only_and_says_so() -> None:
    async with Canned() as server:
        lines: list[str] = []
        server.always("/v1/models", PLAIN_MODELS)
        server.always(GENERATE, Answer(403))
        server.always(COMPLETIONS, Answer(body={"model": "m", "choices": [{"text": "x"}]}))
        assert await chosen(server, lines) is Kind.CHAT
        assert "good for evaluation only" in lines[0]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_transient_error_is_not_taken_for_a_path_that_is_missing(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PAUSES", (0.01, 0.01))
    async with Canned() as server:
        lines: list[str] = []
        server.always("/v1/models", PLAIN_MODELS)
        server.says(GENERATE, Answer(status), Answer(status))
        server.always(GENERATE, plain(Kind.VLLM_GENERATE, [5]))
        server.always(COMPLETIONS, plain(Kind.VLLM, [5]))
        assert await chosen(server, lines) is Kind.VLLM_GENERATE
        assert lines == []


async def test_an_engine_that_stops_answering_while_it_is_looked_at_is_down_and_is_no_other_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "PAUSES", (0.01, 0.01))
    async with Canned() as server:
        server.always("/v1/models", PLAIN_MODELS)
        server.always(GENERATE, Answer(502))
        server.always(COMPLETIONS, plain(Kind.VLLM, [5]))
        with pytest.raises(EndpointDown, match="at /inference/v1/generate does not answer"):
            await chosen(server, [])
        assert len(server.bodies(GENERATE)) == 3
        assert server.bodies(COMPLETIONS) == []


async def test_an_engine_that_answers_500_before_it_is_gone_is_down_and_is_no_chat_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "PAUSES", (0.01, 0.01))
    async with Canned() as server:
        server.always("/v1/models", PLAIN_MODELS)
        server.says(GENERATE, Answer(500))
        server.always(GENERATE, Answer(503))
        with pytest.raises(EndpointDown, match="at /inference/v1/generate does not answer"):
            await chosen(server, [])


async def test_the_dialect_is_part_of_each_reply() -> None:
    async with Canned() as server, policy_at(server, kind=None) as policy:
        server.always("/v1/models", PLAIN_MODELS)
        server.always(GENERATE, vllm_0_26([5]))
        server.always(COMPLETIONS, plain(Kind.VLLM, [5]))
        await policy.check()
        assert (await policy.sample(request())).dialect == "vllm"


def test_a_dialect_that_is_named_is_not_looked_for() -> None:
    async def main() -> list[str]:
        async with Canned() as server, policy_at(server, kind=Kind.FIREWORKS) as policy:
            server.always("/v1/models", models(max_model_len=5))
            await policy.check()
            assert policy.endpoints[0].dialect.kind is Kind.FIREWORKS
            return [item.path for item in server.requests]

    assert run(main()) == ["/v1/models"]


# --- whether it speaks the dialect that a user named


def spoken(kind: Kind, **messages: Answer) -> list[Any]:
    """What an engine that says this was sent at the path of `kind`, when it was asked for that."""

    async def main() -> list[Any]:
        async with Canned() as server, policy_at(server, kind=kind) as policy:
            for path, answer in messages.items():
                server.always("/" + path.replace("__", "/"), answer)
            await policy.check()
            await check_dialect(policy.endpoints)
            return server.bodies(PATHS[kind])

    return run(main())


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("status", [200, 400, 422, 500])
def test_a_dialect_whose_path_is_known_is_spoken_and_nothing_is_sampled(
    kind: Kind, status: int
) -> None:
    path = PATHS[kind].removeprefix("/").replace("/", "__")
    message = {"v1__models": models(), path: Answer(status, {"error": "prompt is missing"})}
    assert spoken(kind, **message) == [{"model": "m"}]


@pytest.mark.parametrize("status", [404, 405])
def test_a_dialect_whose_path_is_unknown_is_refused_with_what_the_engine_looks_like(
    status: int,
) -> None:
    message = {"v1__models": models(), "inference__v1__generate": REFUSED}
    with pytest.raises(
        PolicyRefused, match=r"does not speak sglang; it looks like vllm-generate \(leave --dialect"
    ):
        spoken(Kind.SGLANG, generate=Answer(status), **message)


def test_a_wire_of_vllm_that_is_switched_off_is_not_spoken() -> None:
    off = recorded_answer("generate_disabled")
    with pytest.raises(PolicyRefused, match="does not speak vllm-generate; it looks like vllm "):
        spoken(Kind.VLLM_GENERATE, v1__models=models(), inference__v1__generate=off)


def test_an_engine_that_does_not_speak_what_it_looks_like_is_not_asked_to_be_looked_at() -> None:
    with pytest.raises(PolicyRefused, match=r"404.*looks like sglang, but does not speak it"):
        spoken(Kind.SGLANG, v1__models=models(owned_by="sglang"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_path_that_wants_a_key_is_not_taken_for_one_that_is_not_there(status: int) -> None:
    with pytest.raises(PolicyRefused, match=f"answered {status}.*HOLDFAST_API_KEY"):
        spoken(Kind.SGLANG, v1__models=models(), generate=Answer(status))


# --- what it serves


def check(answer: Answer) -> None:
    async def main() -> None:
        async with Canned() as server, policy_at(server) as policy:
            server.always("/v1/models", answer)
            await policy.check()

    run(main())


def test_an_unknown_model_lists_the_served_ones() -> None:
    served = {"data": [{"id": "a"}, {"id": "b"}]}
    with pytest.raises(PolicyRefused, match="does not serve model 'm'; it serves: a, b"):
        check(Answer(body=served))
    with pytest.raises(PolicyRefused, match="it serves: none"):
        check(Answer(body={"data": []}))


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (Answer(401), PolicyRefused, "401.*HOLDFAST_API_KEY.*--api-key-env.*from Python: api_key"),
        (Answer(403), PolicyRefused, "403.*sent no key: put it into HOLDFAST_API_KEY"),
        (Answer(404), PolicyRefused, "404.*no inference engine"),
        (
            Answer(404, b"<!DOCTYPE HTML>\n<html><p>no such file"),
            PolicyRefused,
            r"404: a web page\b(?!.*no such file).* it may be no inference engine",
        ),
        (Answer(503), EndpointDown, "503.*start it"),
        (Answer(body=b"<html>"), EndpointDown, "answers what is not a list of models.*check"),
        (Answer(body={"data": "x"}), EndpointDown, "answers what is not a list of models"),
    ],
)
def test_an_address_that_is_no_engine_says_what_to_do(
    answer: Answer, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        check(answer)


@pytest.mark.parametrize("path", ["/v1/v1", "/v1/models", "/v1/chat/completions"])
def test_an_address_with_too_much_behind_it_is_told_without_it(path: str) -> None:
    async def main() -> None:
        async with Canned() as server:
            server.always("/v1/models", models())
            policy = EnginePolicy(server.url + path, "m")
            try:
                await policy.check()
            finally:
                await policy.aclose()

    with pytest.raises(
        PolicyRefused, match=f"looked for at {path}: give the address of what comes before /models"
    ):
        run(main())


def test_https_for_an_engine_that_speaks_http_is_told() -> None:
    async def main() -> None:
        async with Canned() as server:
            policy = EnginePolicy(server.url.replace("http:", "https:"), "m")
            try:
                await policy.check()
            finally:
                await policy.aclose()

    with pytest.raises(PolicyRefused, match=r"plain http, not https; give the .* as http://127"):
        run(main())


def test_an_engine_that_is_not_there_is_told_without_words_about_certificates() -> None:
    async def main() -> None:
        async with Canned() as server, policy_at(server) as policy:
            await server.stop()
            await policy.check()

    with pytest.raises(EndpointDown, match=r"connect to host 127\.0\.0\.1:\d+ \["):
        run(main())


# --- how long a prompt may be


async def limited(
    server: Canned, body: Request, *, longest: int, kind: Kind = Kind.VLLM
) -> Completion:
    """Samples from an engine that says how long its context is."""
    server.always("/v1/models", models(max_model_len=longest))
    async with policy_at(server, kind=kind, retry=QUICK) as policy:
        await policy.check()
        return await policy.sample(body)


@pytest.mark.parametrize("kind", TOKEN_KINDS)
@pytest.mark.parametrize(("longest", "wanted"), [(100, 8), (11, 8), (10, 7), (4, 1)])
async def test_no_more_is_asked_for_than_fits_the_context(
    kind: Kind, longest: int, wanted: int
) -> None:
    async with Canned() as server:
        server.always(PATHS[kind], plain(kind, [5]))
        await limited(server, request(prompt=[1, 2, 3]), longest=longest, kind=kind)
        assert max_tokens_of(kind, server.bodies(PATHS[kind])[0]) == wanted


@pytest.mark.parametrize("longest", [3, 2])
async def test_a_prompt_that_fills_the_context_is_an_outcome_without_a_request(
    longest: int,
) -> None:
    async with Canned() as server:
        with pytest.raises(ContextOverflow, match=f"3 tokens; the model takes {longest}"):
            await limited(server, request(prompt=[1, 2, 3]), longest=longest)
        assert server.bodies(COMPLETIONS) == []


async def test_a_completion_that_is_interrupted_where_the_context_ends_is_whole() -> None:
    """As if it had not been: the engine would have said that its length is at its end."""
    async with Canned() as server:
        server.says(COMPLETIONS, plain(Kind.VLLM, [4, 5], finish="abort"))
        completion = await limited(server, request(prompt=[1, 2, 3]), longest=5)
        assert (ids(completion), completion.finish_reason) == ([4, 5], "length")
        drafted = request(prompt=[1, 2, 3], draft=draft_of([4, 5]))
        again = await limited(server, drafted, longest=5)
        assert (ids(again), again.finish_reason) == ([4, 5], "length")
        assert len(server.bodies(COMPLETIONS)) == 1


async def test_a_chat_is_not_measured_in_tokens_that_nobody_knows() -> None:
    async with Canned() as server:
        message = {"message": {"content": "hi"}, "finish_reason": "stop"}
        server.always(PATHS[Kind.CHAT], Answer(body={"choices": [message]}))
        body = request(prompt=[1] * 50, messages=(user("hello"),))
        completion = await limited(server, body, longest=10, kind=Kind.CHAT)
        assert completion.message is not None
        assert completion.message.content == "hi"
        assert server.bodies(PATHS[Kind.CHAT])[0]["max_tokens"] == 8


# --- an engine that is paused takes a request and says nothing


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_request_that_hangs_until_the_pause_ends_succeeds(stream: bool) -> None:
    async with Canned() as server, policy_at(server, retry=ONCE) as policy:
        resumed = asyncio.Event()
        reply = streamed(Kind.VLLM, [5, 6]) if stream else plain(Kind.VLLM, [5, 6])
        reply.before = resumed.wait
        server.says(COMPLETIONS, reply)
        call = asyncio.create_task(policy.sample(Kept().request() if stream else request()))
        await asyncio.sleep(0.1)
        assert not call.done()
        resumed.set()
        completion = await call
        assert (ids(completion), completion.tries) == ([5, 6], 1)


@pytest.mark.parametrize(
    ("stream", "says"), [(False, "did not answer within"), (True, "sent nothing for")]
)
async def test_a_pause_that_never_ends_is_the_engines_failure(stream: bool, says: str) -> None:
    retry = RetryPolicy(tries=2, try_timeout=0.7, stall_timeout=0.7, base=0.001)
    async with Canned() as server, policy_at(server, retry=retry) as policy:
        server.always(COMPLETIONS, Answer(before=asyncio.Event().wait))
        with pytest.raises(EngineUnavailable, match=says) as caught:
            await policy.sample(Kept().request() if stream else request())
        assert caught.value.cause == "infrastructure"
        assert caught.value.reached
        assert len(server.bodies(COMPLETIONS)) == 2
