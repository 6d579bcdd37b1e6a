"""Data sets by name, fetched from a hub: a small one over a real socket."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from holdfast.records.errors import UsageError
from holdfast.tasks.hugging_face import HubName, parse_name

COMMIT = "a" * 40
FILES = {
    "test.jsonl": b'{"question": "1 + 1?", "answer": "2"}\n',
    "train.jsonl": b'{"question": "2 + 2?", "answer": "4"}\n' * 3,
}
INFO = {"id": "me/sums", "sha": COMMIT, "private": False, "tags": [], "downloads": 0}
INFO |= {"siblings": [{"rfilename": name} for name in FILES]}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as fetching a data set needs."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(has_body=False)

    def do_GET(self):
        self.answer(has_body=True)

    def answer(self, *, has_body: bool) -> None:
        path, api = unquote(urlsplit(self.path).path), "/api/datasets/me/sums"
        name = path.rpartition("/")[2]
        if path.startswith(f"{api}/tree"):
            self.reply(json.dumps([entry(name) for name in FILES]).encode(), has_body)
        elif path.startswith(api):
            self.reply(json.dumps(INFO).encode(), has_body)
        elif path.startswith("/datasets/me/sums/resolve/") and name in FILES:
            tag = f'"{entry(name)["oid"]}"'
            self.reply(FILES[name], has_body, ETag=tag, X_Repo_Commit=COMMIT)
        else:
            self.reply(b"{}", has_body, code=404, X_Error_Code="EntryNotFound")

    def reply(self, data: bytes, has_body: bool, *, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if has_body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def entry(name: str) -> dict[str, object]:
    digest = hashlib.sha1(FILES[name]).hexdigest()
    return {"type": "file", "oid": digest, "size": len(FILES[name]), "path": name}


CODE = """
import holdfast
columns = {"prompt": "question", "ground_truth": "answer"}
print([task.ground_truth for task in holdfast.read_tasks("hf:me/sums:test", columns=columns)])
print(len(holdfast.read_tasks("hf:me/sums:train", columns=columns, limit=2)))
for name in ("hf:me/sums", "hf:me/sums:nope", "hf:me/other"):
    try:
        holdfast.read_tasks(name)
    except holdfast.UsageError as error:
        print(error)
"""


def test_a_data_set_is_fetched_by_its_name_and_split(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub = f"http://127.0.0.1:{server.server_port}"
        ended = subprocess.run(
            [sys.executable, "-c", CODE],
            env={**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        server.shutdown()
    lines = ended.stdout.splitlines()
    assert lines[:2] == ["['2']", "2"], ended.stderr
    assert lines[2].startswith(
        "hf:me/sums has several splits (train, test); name one, as in hf:me/"
    )
    assert lines[3].startswith('hf:me/sums:nope cannot be loaded: Unknown split "nope"')
    assert lines[4].startswith("hf:me/other cannot be loaded: ")


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("hf:gsm8k", HubName("gsm8k", None, None)),
        ("hf:openai/gsm8k", HubName("openai/gsm8k", None, None)),
        ("hf:openai/gsm8k:test", HubName("openai/gsm8k", None, "test")),
        ("hf:openai/gsm8k/main:test[:5]", HubName("openai/gsm8k", "main", "test[:5]")),
    ],
)
def test_a_name_has_a_configuration_and_a_split(name, result):
    assert parse_name(name) == result


def test_a_folder_that_is_not_there_is_no_data_set(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        parse_name(f"hf:{tmp_path / 'nowhere'}")
