"""How a chat API's reply ended, and what it says in place of one, is kept."""

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import holdfast
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind

CALLS = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
ENDINGS = {
    "filtered": ({"content": None}, "content_filter"),
    "cut": ({"content": "First, take the"}, "content_filter"),
    "refused": ({"content": None, "refusal": "I am sorry."}, "stop"),
    "answered": ({"content": "4", "refusal": None}, "stop"),
    "called": ({"content": None, "tool_calls": CALLS}, "tool_calls"),
    "called as of old": ({"content": None, "tool_calls": CALLS}, "function_call"),
    "thought": ({"content": "<think>3? No.</think>\n\n4"}, "stop"),
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
        ("called", "", "tool_calls"),
        ("called as of old", "", "tool_calls"),
        ("thought", "\n\n4", "stop"),
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
    results_found = {
        trajectory.key.task: (trajectory.status.name, trajectory.reason, trajectory.reply)
        for trajectory in result.trajectories
    }
    assert results_found == {
        "filtered": ("TRUNCATED", "content_filter", ""),
        "cut": ("TRUNCATED", "content_filter", "First, take the"),
        "refused": ("COMPLETED", "", "I am sorry."),
        "answered": ("COMPLETED", "", "4"),
        "called": ("COMPLETED", "", ""),
        "called as of old": ("COMPLETED", "", ""),
        "thought": ("COMPLETED", "", "\n\n4"),
    }


def think(provider: str, journal: Path, *, separate: bool | None) -> dict[str, object]:
    """What is seen of a reply that begins with a thought: by its rollout and in its row."""
    seen: dict[str, object] = {}

    async def rollout(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        reply = await t.generate(separate_reasoning=separate)
        seen.update(text=reply.text, reasoning=reply.message.reasoning, raw=reply.raw_text)

    holdfast.run_sync(
        rollout, tasks=[{"prompt": "thought"}], journal=journal, policy=provider, name="run"
    )
    file = journal.with_suffix(".jsonl")
    options = ["--what", "rows", "--journal", str(journal), "--out", str(file)]
    # Another process, which knows only what is recorded.
    subprocess.run([sys.executable, "-m", "holdfast", "export", "run", *options], check=True)
    return seen | {"row": json.loads(file.read_text())["messages"][-1]}


def test_a_thought_in_the_content_is_set_apart_and_the_raw_text_is_kept(
    provider: str, tmp_path: Path
) -> None:
    assert think(provider, tmp_path / "j.db", separate=None) == {
        "text": "\n\n4",
        "reasoning": "3? No.",
        "raw": "<think>3? No.</think>\n\n4",
        "row": {"role": "assistant", "content": "\n\n4", "reasoning_content": "3? No."},
    }


def test_a_thought_stays_in_the_content_where_that_is_asked_for(
    provider: str, tmp_path: Path
) -> None:
    raw = "<think>3? No.</think>\n\n4"
    assert think(provider, tmp_path / "j.db", separate=False) == {
        "text": raw,
        "reasoning": None,
        "raw": raw,
        "row": {"role": "assistant", "content": raw},
    }
