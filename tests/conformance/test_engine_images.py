"""What a real vLLM says of what its model cannot do: the request's fault, and asked for once."""

import asyncio
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion, Request
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import BadRequest
from holdfast.records.message import Message, Role, image, user
from holdfast.records.sampling import Sampling
from support.conformance.engines import LONGEST, TINY, VLLM_PYTHON
from support.conformance.vllm_server import VllmServer

pytestmark = pytest.mark.vllm
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWj"
    "R9awAAAABJRU5ErkJggg=="
)
ELSEWHERE = "http://127.0.0.1:9/cat.png?signature=s3cr3t-s1gnature"


@pytest.fixture(scope="module")
def server() -> Iterator[VllmServer]:
    if VLLM_PYTHON not in os.environ:
        pytest.skip(f"{VLLM_PYTHON} names no Python with vLLM (make vllm)")
    server = VllmServer(Path(os.environ[VLLM_PYTHON]), lambda: TINY, longest=LONGEST)
    server.start()
    yield server
    server.stop()


def sample(
    server: VllmServer, kind: Kind, message: Message, sampling: Sampling
) -> Completion | BaseException:
    async def main() -> Completion:
        policy = EnginePolicy(
            server.url, server.model, dialect=kind, retry=RetryPolicy(tries=3, deadline=60)
        )
        try:
            await policy.check()
            return await policy.sample(
                Request(_prompt(kind), sampling, 1, "r", messages=(message,))
            )
        finally:
            await policy.aclose()

    try:
        return asyncio.run(main())
    except BadRequest as error:
        return error


def _prompt(kind: Kind) -> "array[int]":
    return array("i", () if kind is Kind.CHAT else (5, 6, 7))


@pytest.mark.parametrize("url", [PIXEL, ELSEWHERE])
def test_an_image_for_a_model_that_reads_text_is_refused_cleanly(
    server: VllmServer, url: str
) -> None:
    message = Message(Role.USER, [{"type": "text", "text": "what is it?"}, image(url)])
    refused = sample(server, Kind.CHAT, message, Sampling(max_tokens=4))
    assert isinstance(refused, BadRequest)
    assert "400" in refused.reason
    assert "multimodal" in refused.reason or "image" in refused.reason
    assert "s3cr3t" not in str(refused)
    assert PIXEL[30:] not in str(refused)


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.VLLM, Kind.VLLM_GENERATE])
def test_a_budget_that_it_was_not_told_how_to_hold_is_refused(
    server: VllmServer, kind: Kind
) -> None:
    budget = Sampling(max_tokens=4, thinking_token_budget=10)
    refused = sample(server, kind, user("hi"), budget)
    assert isinstance(refused, BadRequest)
    assert "reasoning" in refused.reason
    assert not isinstance(sample(server, kind, user("hi"), Sampling(max_tokens=4)), BadRequest)
