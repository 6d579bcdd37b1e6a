"""How a chat API's reply ended, and what it says in place of one, is kept."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

import holdfast
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind

ENDINGS = {
    "filtered": ({"content": None}, "content_filter"),
    "cut": ({"content": "First, take the"}, "content_filter"),
    "refused": ({"content": None, "refusal": "I am sorry."}, "stop"),
    "answered": ({"content": "4", "refusal": None}, "stop"),
}


def answer(ending: str) -> bytes:
    message, reason = ENDINGS[ending]
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}
    return json.dumps({"model": "m", "choices": [choice]}).encode()


@pytest.mark.parametrize(
    ("ending", "text", "reason"),
    [
        ("filtered", "", "content_filter"),
        ("cut", "First, take the", "content_filter"),
        ("refused", "I am sorry.", "stop"),
        ("answered", "4", "stop"),
    ],
)
def test_it_is_read_as_it_was_said(ending: str, text: str, reason: str) -> None:
    piece = DIALECTS[Kind.CHAT].whole(answer(ending))
    assert piece.message is not None
    assert (piece.message.text, piece.finish_reason) == (text, reason)


class _Provider(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        self._say(b'{"object": "list", "data": [{"id": "m"}]}' if known else b"{}", known)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.path == "/v1/chat/completions" and "messages" in body
        self._say(answer(body["messages"][-1]["content"]) if chat else b"{}", chat)

    def _say(self, body: bytes, known: bool) -> None:
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def provider() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Provider) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()


def test_a_trajectory_that_ends_with_a_filtered_reply_is_truncated_by_that(provider: str) -> None:
    tasks = [{"id": ending, "prompt": ending} for ending in ENDINGS]
    result = holdfast.run_sync(solve, tasks=tasks, journal="memory:", policy=provider)
    found = {one.key.task: (one.status.name, one.reason, one.reply) for one in result.trajectories}
    assert found == {
        "filtered": ("TRUNCATED", "content_filter", ""),
        "cut": ("TRUNCATED", "content_filter", "First, take the"),
        "refused": ("COMPLETED", "", "I am sorry."),
        "answered": ("COMPLETED", "", "4"),
    }
