"""A model by its folder, by its name on the hub, or not at all."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from holdfast.embedded.model.files import TINY, model_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "modeling_own.py": b"raise SystemExit('code')",
    "pytorch_model.bin": b"a pickle",
    "onnx/config.json": b"{}",
}


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub as `snapshot_download` asks for."""

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def do_GET(self) -> None:
        self._send(with_body=True)

    def _send(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if path.startswith("/api/models/org/name/tree/"):
            listed = [
                {"type": "file", "path": file, "size": len(data), "oid": _etag(data)}
                for file, data in FILES.items()
            ]
            self._answer(json.dumps(listed).encode(), with_body=with_body)
        elif path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": file} for file in FILES]
            result = {"id": "org/name", "sha": COMMIT, "siblings": siblings}
            self._answer(json.dumps(result).encode(), with_body=with_body)
        elif path.startswith("/org/name/resolve/") and name in FILES:
            self._answer(FILES[name], with_body=with_body)
        else:
            self.send_error(404)

    def _answer(self, data: bytes, *, with_body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{_etag(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's library reads its variables when it is imported."""
    own = {"HF_HOME": str(folder / "hub"), "HF_HUB_DISABLE_XET": "1", **variables}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )


FETCH = (
    "import os; from holdfast.embedded.model.files import model_folder; "
    "found = model_folder('org/name'); print(sorted(os.listdir(found)))"
)


def test_a_name_on_the_hub_is_downloaded_without_code_and_pickles(hub: str, tmp_path: Path) -> None:
    done = run(tmp_path, "-c", FETCH, HF_ENDPOINT=hub)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['config.json', 'model.safetensors', 'tokenizer.json']\n"
    again = run(tmp_path, "-c", FETCH, HF_HUB_OFFLINE="1")
    assert again.stdout == done.stdout, "what is here already needs no network"


def test_a_training_says_how_to_get_a_model_that_the_hub_does_not_give(tmp_path: Path) -> None:
    (tmp_path / "solve.py").write_text(
        "async def rollout(t):\n    t.add('q')\n    await t.generate()\n    return 1.0\n"
    )
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "q"}\n')
    common = ("solve.py", "--tasks", "tasks.jsonl", "--model", "org/name")
    arguments = ("train", *common, "--run", "r", "--out", "o")
    done = run(tmp_path, "-m", "holdfast", *arguments, HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: org/name is not a folder, and the hub did not give it (")
    assert line.endswith(
        "; give a folder: `hf download org/name --local-dir DIR` makes one where there is a network"
    )
    assert not (tmp_path / "o").exists()


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("org/name").mkdir(parents=True)
    assert model_folder("org/name") == Path("org/name")
    assert model_folder("/nowhere/at/all") == Path("/nowhere/at/all")
    assert model_folder(None) == TINY
