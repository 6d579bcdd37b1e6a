"""A vLLM without routes for the version of its weights gets them."""

import asyncio
import json
from typing import Any

from holdfast.vllm_server.version_route import VersionRoute

LATER = "step-3"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418})
    await send({"type": "http.response.body", "body": b"null"})


def ask(server: VersionRoute, method: str, path: str, *parts: bytes) -> tuple[int, Any]:
    sent: list[Any] = []
    waiting = list(parts or (b"",))

    async def receive() -> Any:
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(server({"type": "http", "method": method, "path": path}, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_the_version_is_default_until_it_is_renamed() -> None:
    server = VersionRoute(app)
    assert ask(server, "GET", "/weight_info") == (200, {"weight_version": "default"})
    body = json.dumps({"new_version": LATER}).encode()
    status, _ = ask(server, "POST", "/update_weight_version", body[:9], body[9:])
    assert status == 200
    assert ask(server, "GET", "/weight_info") == (200, {"weight_version": LATER})


def test_a_body_without_a_version_changes_nothing() -> None:
    server = VersionRoute(app)
    for body in (b"", b"[]", b"{}", b"{"):
        assert ask(server, "POST", "/update_weight_version", body)[0] == 400
    assert ask(server, "GET", "/weight_info") == (200, {"weight_version": "default"})


def test_other_requests_reach_vllm() -> None:
    assert ask(VersionRoute(app), "POST", "/v1/completions", b"{}")[0] == 418
    assert ask(VersionRoute(app), "GET", "/update_weight_version")[0] == 418
