"""A remote server of eval-protocol's kind: it asks the model, and logs how it ended."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Remote:
    """`endings`: the status code that each start ends with; 100 (finished) where none is left."""

    def __init__(self, *endings: int, tells_status: bool = False):
        self.endings = list(endings)
        self.tells_status = tells_status
        self.started: list[dict[str, Any]] = []
        self.ended: dict[str, int] = {}
        self.url = ""

    def begin(self, request: dict[str, Any]) -> None:
        code = self.endings[len(self.started)] if len(self.started) < len(self.endings) else 100
        self.started.append(request)
        params = request["completion_params"]
        body = {"model": params["model"], "messages": request["messages"]}
        post(f"{request['model_base_url']}/chat/completions", body, key=request["api_key"])
        name = request["metadata"]["rollout_id"]
        self.ended[name] = code
        if self.tells_status:
            return
        gateway = request["model_base_url"].partition("/t/")[0]
        for message in (
            None,
            {"code": 101, "message": "on its way"},
            {"code": code, "message": "over"},
        ):
            record = {"tags": [f"rollout_id:{name}"], "status": message, "message": "a line"}
            try:
                post(f"{gateway}/logs", record, key="its-own")
            except urllib.error.URLError:
                return  # The run went on without it.

    def status(self, name: str) -> dict[str, Any] | None:
        if not self.tells_status:
            return None
        code = self.ended.get(name)
        return {"terminated": code is not None, "status": code and {"code": code, "message": ""}}


def post(url: str, body: object, *, key: str) -> bytes:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


@contextmanager
def serving(remote: Remote) -> Iterator[Remote]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            threading.Thread(target=remote.begin, args=(json.loads(body),), daemon=True).start()
            self._answer({"status": "accepted"})

        def do_GET(self) -> None:
            self._answer(remote.status(self.path.rpartition("rollout_id=")[2]))

        def _answer(self, message: object) -> None:
            body = json.dumps(message).encode()
            self.send_response(404 if message is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    remote.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield remote
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
