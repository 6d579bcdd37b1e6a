"""`/v1/completions` and `/inference/v1/generate` over a real socket."""

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from holdfast.embedded.scheduler.engine import DecodeEngine
from support.embedded.client import NAME, Client, completion
from support.embedded.requests import body_for, keys, through
from support.embedded.tiny_models import EOS
from support.paths import WIRE

PATHS = ["/v1/completions", "/inference/v1/generate"]


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        return [item["logprob"] for item in logprobs["content"]]
    return list(logprobs["token_logprobs"])


@pytest.mark.parametrize(
    ("recorded", "path"),
    [("completions_ids_logprobs0.json", PATHS[0]), ("generate.json", PATHS[1])],
)
def test_the_shape_is_that_of_vllm(engine: DecodeEngine, recorded: str, path: str) -> None:
    theirs = msgspec.json.decode((WIRE / recorded).read_bytes())["response"]
    ours = through(engine, lambda client: client.ok(path, body_for(path)))
    if path == PATHS[0]:
        for choice in ours["choices"]:
            assert choice.pop("weight_versions") == [{"version": "v1", "start": 0, "end": 8}]
    assert keys(ours) == keys(theirs)


def test_the_shape_of_a_stream_is_that_of_vllm(engine: DecodeEngine) -> None:
    text = msgspec.json.decode((WIRE / "completions_stream.json").read_bytes())["response"]
    lines = [line.removeprefix("data: ") for line in text.strip().split("\n\n")]
    theirs = [keys(msgspec.json.decode(line)) for line in lines[:-1]]
    request = completion(max_tokens=4, logprobs=1, stream_options={"include_usage": True})
    ours = through(engine, lambda client: client.stream(PATHS[0], request))
    assert ours[-1] == "[DONE]"
    for number, chunk in enumerate(ours[:-2], 1):
        (choice,) = chunk["choices"]
        assert choice.pop("weight_versions") == [{"version": "v1", "start": 0, "end": number}]
    assert [keys(item) for item in ours[:-1]] == theirs


@pytest.mark.parametrize("path", PATHS)
def test_the_same_seed_gives_the_same_answer_and_another_another(
    engine: DecodeEngine, path: str
) -> None:
    async def ask(client: Client) -> list[Any]:
        seeds = [7, 7, 8, None, None]
        return [await client.ok(path, body_for(path, seed=seed)) for seed in seeds]

    choices = [item["choices"][0] for item in through(engine, ask)]
    ids = [tuple(choice["token_ids"]) for choice in choices]
    assert ids[0] == ids[1]
    assert logprobs_of(choices[0]) == logprobs_of(choices[1])
    assert len(set(ids)) == 4, "no seed means a new one each time"


@pytest.mark.parametrize("path", PATHS)
def test_n_choices_differ_and_the_first_is_that_of_n_1(engine: DecodeEngine, path: str) -> None:
    async def ask(client: Client) -> Any:
        return await client.ok(path, body_for(path)), await client.ok(path, body_for(path, n=4))

    first, four = through(engine, ask)
    assert [choice["index"] for choice in four["choices"]] == [0, 1, 2, 3]
    assert four["choices"][0] == first["choices"][0]
    assert len({tuple(choice["token_ids"]) for choice in four["choices"]}) == 4
    assert four["usage"]["completion_tokens"] == 32
    assert four["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_says_what_the_whole_answer_says(engine: DecodeEngine, path: str, n: int) -> None:
    body = body_for(path, n=n, max_tokens=20, stop=["zzz"], return_token_ids=True)

    async def ask(client: Client) -> Any:
        options = {**body, "stream_options": {"include_usage": True}}
        return await client.ok(path, body), await client.stream(path, options)

    whole, events = through(engine, ask)
    *chunks, closing, done = events
    assert done == "[DONE]"
    assert closing["choices"] == []
    assert closing["usage"].items() <= whole["usage"].items()
    for choice in whole["choices"]:
        parts = [
            chunk["choices"][0]
            for chunk in chunks
            if chunk["choices"][0]["index"] == choice["index"]
        ]
        assert list(itertools.chain(*(part["token_ids"] for part in parts))) == choice["token_ids"]
        assert list(itertools.chain(*map(logprobs_of, parts))) == logprobs_of(choice)
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert parts[-1]["weight_versions"] == choice["weight_versions"]
        assert parts[0]["weight_versions"][0]["end"] == len(parts[0]["token_ids"])
        if path == PATHS[0]:
            assert "".join(part["text"] for part in parts) == choice["text"]
            assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"] == [5, 6, 7]


def test_prompts_are_ids_or_text_one_or_many(engine: DecodeEngine) -> None:
    ids = list(engine.model.tokenizer("The sum")["input_ids"])

    async def ask(client: Client) -> list[Any]:
        prompts = ["The sum", ids, ["The sum", "of twelve"], [ids, [5, 6, 7]]]
        return [await client.complete(prompt=prompt, n=2) for prompt in prompts]

    text, from_ids, texts, lists = through(engine, ask)
    assert text["choices"] == from_ids["choices"] == texts["choices"][:2] == lists["choices"][:2]
    assert [choice["index"] for choice in texts["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in lists["choices"]] == [ids] * 2 + [
        [5, 6, 7]
    ] * 2
    assert lists["usage"]["prompt_tokens"] == len(ids) + 3


def test_generation_ends_at_a_stop_token_and_tells_it(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> Any:
        free = await client.complete(max_tokens=20)
        ids = free["choices"][0]["token_ids"]
        stop = next(i for i in range(5, 20) if ids[i] not in ids[:i])
        stopped = await client.complete(max_tokens=20, stop_token_ids=[ids[stop]])
        return free["choices"][0], stop, stopped["choices"][0]

    free, stop, stopped = through(engine, ask)
    assert free["finish_reason"] == "length"
    assert stopped["token_ids"] == free["token_ids"][: stop + 1], "the stop token is kept"
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stopped["token_ids"][-1])
    assert free["text"].startswith(stopped["text"])
    assert len(stopped["logprobs"]["token_logprobs"]) == stop + 1


def border(choice: dict[str, Any]) -> int | None:
    """A token whose first character, after the last of the token before it, is a pair that the
    text has once."""
    tokens, text = choice["logprobs"]["tokens"], choice["text"]
    pairs = [(i, tokens[i - 1][-1:] + tokens[i][:1]) for i in range(5, len(tokens))]
    results = [i for i, pair in pairs if len(pair) == 2 and text.count(pair) == 1]
    return results[0] if results else None


def test_generation_ends_at_a_stop_string_across_tokens(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> Any:
        for seed in range(50):
            request = {"max_tokens": 30, "seed": seed}
            free = (await client.complete(**request))["choices"][0]
            if (at := border(free)) is not None:
                break
        assert at is not None
        tokens = free["logprobs"]["tokens"]
        stop = tokens[at - 1][-1] + tokens[at][0]
        cut = await client.complete(**request, stop=stop)
        kept = await client.complete(**request, stop=[stop], include_stop_str_in_output=True)
        return free, at, stop, cut["choices"][0], kept["choices"][0]

    free, at, stop, cut, kept = through(engine, ask)
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert cut["text"] == free["text"][: free["text"].index(stop)]
    assert kept["text"] == cut["text"] + stop
    assert cut["token_ids"] == free["token_ids"][: at + 1], "the completing token is kept"


def test_generation_ends_at_the_end_of_the_text_unless_told_to_go_on(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> Any:
        for seed in range(400):
            request = {"max_tokens": 60, "seed": seed, "logprobs": ...}
            answer = (await client.complete(**request))["choices"][0]
            if answer["finish_reason"] == "stop":
                return answer, (await client.complete(**request, ignore_eos=True))["choices"][0]
        raise AssertionError("no seed of 400 came to an end")

    ended, went_on = through(engine, ask)
    assert ended["token_ids"][-1] == EOS
    assert ended["stop_reason"] is None
    assert went_on["token_ids"][: len(ended["token_ids"])] == ended["token_ids"]
    assert (went_on["finish_reason"], len(went_on["token_ids"])) == ("length", 60)
    assert "<|im_end|>" not in ended["text"]


def test_logprobs_are_as_many_as_asked_for(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> Any:
        return [await client.complete(logprobs=count) for count in (..., 0, 2)]

    none, sampled, two = (item["choices"][0]["logprobs"] for item in through(engine, ask))
    assert none is None
    assert all(len(items) == 1 for items in sampled["top_logprobs"])
    assert two["token_logprobs"] == sampled["token_logprobs"]
    for token, logprob, top in zip(
        two["tokens"], two["token_logprobs"], two["top_logprobs"], strict=True
    ):
        assert top[token] == logprob
        assert max(top.values()) >= logprob


def test_a_request_keeps_the_id_that_it_was_given(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> list[str]:
        headers = {"X-Request-Id": "abc-1"}
        first = await client.ok(PATHS[0], body_for(PATHS[0]), **headers)
        second = await client.ok(PATHS[1], body_for(PATHS[1]), **headers)
        return [first["id"], second["request_id"], (await client.complete())["id"]]

    ids = through(engine, ask)
    assert ids[:2] == ["cmpl-abc-1", "generate-tokens-abc-1"]
    assert ids[2].startswith("cmpl-")


def test_generate_without_max_tokens_fills_the_context(engine: DecodeEngine) -> None:
    room = 12
    prompt = [5] * (engine.model.max_length - room)
    body = {"token_ids": prompt, "sampling_params": {"ignore_eos": True}}
    answer = through(engine, lambda client: client.ok(PATHS[1], body))
    assert len(answer["choices"][0]["token_ids"]) == room
    assert answer["choices"][0]["logprobs"] is None


def test_models_health_and_metrics(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> Any:
        await client.complete(n=2)
        return [await client.get(path) for path in ("/v1/models", "/health", "/metrics")]

    models, health, metrics = through(engine, ask)
    theirs = msgspec.json.decode((WIRE / "models.json").read_bytes())["response"]
    ours = msgspec.json.decode(models[1])
    assert ours["data"][0].pop("seeds") == "position"
    assert ours["data"][0].pop("logprobs_mode") == "processed"
    assert ours["data"][0].pop("renderer") == "template"
    assert ours["data"][0].pop("solo") is None
    assert keys(ours) == keys(theirs)
    assert ours["data"][0]["max_model_len"] == engine.model.max_length
    assert ours["data"][0]["root"] == str(engine.model.path)
    assert health == (200, "")
    assert f'holdfast_requests_running{{model_name="{NAME}"}} 0\n' in metrics[1]
    assert 'version="v1"} 1\n' in metrics[1]
    assert 'holdfast_pass_tokens_bucket{model_name="tiny",le="+Inf"}' in metrics[1]


@pytest.mark.parametrize("path", PATHS)
def test_what_cuts_and_bends_is_kept_whatever_else_is_sampled(
    engine: DecodeEngine, path: str
) -> None:
    """Each over the socket, alone and beside others with other parameters."""
    asks = [
        {"top_k": 1, "temperature": 1.0},
        {"min_p": 1.0, "temperature": 1.0},
        {"temperature": 0.0},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "temperature": 0.0},
        {"repetition_penalty": 3.0, "temperature": 0.0},
        {"logit_bias": {str(token): -100 for token in (5, 6, 7)}, "seed": 3},
    ]

    def body(changes: dict[str, Any]) -> dict[str, Any]:
        params = {"max_tokens": 12, "seed": 7, "n": 1, "ignore_eos": True, **changes}
        if path == PATHS[0]:
            return completion(**params, return_token_ids=True)
        return {**body_for(path), "sampling_params": params}

    async def both(client: Client) -> Any:
        alone = [await client.ok(path, body(changes)) for changes in asks]
        together = await asyncio.gather(*(client.ok(path, body(changes)) for changes in asks))
        return alone, together

    alone, together = through(engine, both)
    results = [answer["choices"][0]["token_ids"] for answer in alone]
    assert results == [answer["choices"][0]["token_ids"] for answer in together]
    likeliest, penalized, repeated, biased = results[2], results[3], results[4], results[5]
    assert results[0] == results[1] == likeliest, "only the likeliest token is left"
    assert len(set(penalized)) == len(set(repeated)) == 12, "nothing is said twice"
    assert not {5, 6, 7} & set(biased)
