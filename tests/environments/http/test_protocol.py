"""A server that was written from docs/reference/http-protocol.md alone, without Holdfast."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from holdfast.environments.http.environment import EnvironmentEndpoint
from support.engine.local_run import LocalRun
from support.paths import DOCS

DOCUMENTATION = DOCS / "reference" / "http-protocol.md"


class Foreign(BaseHTTPRequestHandler):
    """Counts. It says the least that the page lets it say."""

    protocol_version = "HTTP/1.1"
    sessions: ClassVar[dict[str, dict]] = {}

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/":
            tools = [{"name": "add", "parameters": {"type": "object"}}]
            return self.answer({"name": "Foreign", "recovery": "snapshot", "tools": tools})
        session = self.sessions[self.path.split("/")[2]]
        return self.send(200, str(session["total"]).encode())

    def do_POST(self) -> None:
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/sessions":
            total = int(base64.b64decode(data["restore"])) if "restore" in data else data["seed"]
            session = {"total": total, "index": 0, "began": {"session": data["session"]}}
            if "restore" not in data:
                session["began"]["observation"] = {"text": f"at {total}"}
            return self.answer(self.sessions.setdefault(data["session"], session)["began"])
        _, _, name, kind = self.path.split("/")
        if name not in self.sessions:
            return self.unknown()
        session = self.sessions[name]
        if session["index"] != data["index"]:
            return self.answer({"error": {"type": "Wrong", "message": "index"}}, 409)
        session["index"] += 1
        by = int(data["action"] if kind == "step" else data["arguments"]["by"])
        if by < 0:
            return self.answer({"refused": "never down"})
        session["total"] += by
        text = f"at {session['total']}"
        return self.answer({"observation": {"text": text}} if kind == "step" else {"content": text})

    def do_DELETE(self) -> None:
        known = self.sessions.pop(self.path.split("/")[2], None)
        self.unknown() if known is None else self.answer({})

    def unknown(self) -> None:
        self.answer({"error": {"type": "Unknown", "message": "who?"}}, 404)

    def answer(self, value: object, status: int = 200) -> None:
        self.send(status, json.dumps(value).encode())

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def foreign():
    Foreign.sessions.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_in_other_words_is_used_and_comes_back_by_its_snapshots(foreign):
    lost = []

    async def solve(t):
        endpoint = await EnvironmentEndpoint.describe(foreign)
        episode = await t.env(endpoint.environment(), seed=3)
        t.add(episode.observation)
        t.add(await episode.step("2"))
        message = await t.tool(episode.tools[0].call(by=1), *episode.tools)
        no = await t.tool(episode.tools[0].call(by=-1), *episode.tools)
        await t.generate()
        if not lost:
            lost.append(Foreign.sessions.popitem())
        t.add(await episode.step("4"))
        assert (message.content, no.content, no.error) == ("at 6", "never down", "ToolSaysNo")

    local = LocalRun()
    local.run(solve)
    history = local.history()
    assert history.status.name == "COMPLETED"
    assert [failure.type for failure in history.failures] == ["LostSession"]
    assert [step.observation for step in history.environment_steps] == ["at 5", "at 10"]
    assert {result.content for result in history.results.values()} == {"at 6", "never down"}
    assert not Foreign.sessions


def test_every_example_of_the_page_is_json():
    blocks = re.findall(r"```json\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        decoder, rest = json.JSONDecoder(), block
        while rest := rest.strip():
            value, end = decoder.raw_decode(rest)
            assert isinstance(value, dict)
            rest = rest[end:]
