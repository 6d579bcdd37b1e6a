"""Whoever has no token samples and reads, and changes nothing."""

import asyncio
from typing import Any

import pytest

from holdfast.vllm_server.access import TOKEN, TokenGuard, needs_token


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("POST", "/v1/completions", False),
        ("POST", "/v1/chat/completions", False),
        ("POST", "/inference/v1/generate", False),
        ("POST", "/tokenize", False),
        ("GET", "/health", False),
        ("GET", "/weight_info", False),
        ("POST", "/inference/v1/abort_requests", True),
        ("POST", "/collective_rpc", True),
        ("POST", "/pause", True),
        ("POST", "/update_weights", True),
        ("POST", "/update_weight_version", True),
        ("POST", "/v1/load_lora_adapter", True),
        ("POST", "/v1/unload_lora_adapter", True),
        ("POST", "/v1/responses/r/cancel", True),
        ("DELETE", "/anything", True),
    ],
)
def test_what_changes_the_server_needs_the_token(method: str, path: str, needed: bool) -> None:
    assert needs_token(method, path) is needed


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 403),
        ([(b"authorization", b"Bearer wrong")], 403),
        ([(b"authorization", b"Bearer right")], 200),
    ],
)
def test_a_wrong_token_is_refused_before_vllm_sees_the_request(
    headers: list[tuple[bytes, bytes]], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "right")
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    scope = {"type": "http", "method": "POST", "path": "/pause", "headers": headers}
    asyncio.run(TokenGuard(app)(scope, receive, send))
    assert sent[0]["status"] == status
