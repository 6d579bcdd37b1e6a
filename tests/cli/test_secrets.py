"""The engine's key is in no journal, no output and no export, whoever says it aloud."""

import json
import sys
import threading
from argparse import Namespace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from holdfast.cli.main import _take_passwords
from holdfast.journal.postgres.address import address_of
from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine, Done

CANARY = "canaryQ7x9Zp42mNw"
KEY = {"HOLDFAST_API_KEY": CANARY}
LOUD = """
import os
import holdfast


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    raise RuntimeError(f"the call with {os.environ['HOLDFAST_API_KEY']} was refused")
"""


LOUD_AGENT = """
import sys
import holdfast

said = "import os, sys; print(os.environ['SERVICE_TOKEN'], os.environ); sys.exit(3)"
solve = holdfast.BlackBoxRolloutProcessor(
    [sys.executable, "-c", said], env={"SERVICE_TOKEN": "CANARY", "SETTING": "more-CANARY"}
)
""".replace("CANARY", CANARY)


class _Parrot(BaseHTTPRequestHandler):
    """An engine that answers every generation with an error that holds the key."""

    status = 500

    def do_GET(self):
        self._answer(200, {"data": [{"id": "fake"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        text = f"invalid: {self.headers['Authorization']}; got {CANARY}"
        self._answer(self.status, {"error": {"message": text}})

    def _answer(self, status, body):
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *args):
        pass


@pytest.fixture
def parrot(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Parrot)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    engine = SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", model="fake")
    yield CommandLine(tmp_path, engine)
    server.shutdown()
    thread.join()
    server.server_close()


def everything_written(shell, done) -> str:
    """Everything that left the process, in one string."""
    shown = [
        shell.holdfast("show", "r", *arguments, env=KEY) for arguments in ((), ("sum/0", "--json"))
    ]
    exports = [shell.export(what) for what in ("trajectories", "failures")]
    files = [path.read_bytes() for path in shell.place.glob("holdfast.db*")]
    texts = [text for item in (done, *shown) for text in (item.out, item.err)]
    return "".join(texts) + b"".join(exports + files).decode("utf-8", "replace")


def run_once(parrot) -> Done:
    return parrot.run(
        "--call-tries", 1, "--max-retry", 0, "--group-refill", 0, env=KEY, tasks=parrot.tasks("sum")
    )


def test_a_key_that_the_engine_says_aloud_goes_nowhere(parrot):
    done = run_once(parrot)
    assert done.code == Exit.NOTHING, done.err
    message = everything_written(parrot, done)
    assert "answered 500" in message
    assert "[redacted]" in message
    assert CANARY not in message


def test_a_key_that_is_refused_aloud_is_not_shown_and_nothing_begins(parrot, monkeypatch):
    monkeypatch.setattr(_Parrot, "status", 401)
    done = run_once(parrot)
    assert done.code == Exit.USAGE, done.err
    assert "answered 401: invalid: Bearer [redacted]; got [redacted]" in done.err
    assert "HOLDFAST_API_KEY" in done.err
    assert "--api-key-env" in done.err
    assert CANARY not in done.err + done.out
    assert not parrot.journal.exists() or CANARY.encode() not in parrot.journal.read_bytes()


def test_a_key_that_the_rollout_file_says_aloud_while_it_is_imported_goes_nowhere(shell):
    shell.write("agent.py", "import os\nraise ValueError(os.environ['HOLDFAST_API_KEY'])\n")
    done = shell.run(env=KEY)
    assert done.code == Exit.USAGE
    assert "ValueError: [redacted]" in done.err
    assert CANARY not in done.err + done.out


def test_a_key_under_another_name_is_hidden_too(shell):
    shell.write("agent.py", "import os\nraise ValueError(os.environ['MY_KEY'])\n")
    done = shell.run("--api-key-env", "MY_KEY", env={"MY_KEY": CANARY})
    assert CANARY not in done.err + done.out


def test_a_key_that_a_trajectory_says_aloud_goes_nowhere(shell):
    shell.write("agent.py", LOUD)
    shell.tasks("sum")
    message = everything_written(shell, shell.finished_run(env=KEY))
    assert "was refused" in message
    assert CANARY not in message


def test_secrets_that_an_agent_was_given_and_says_in_its_last_words_go_nowhere(shell):
    shell.write("agent.py", LOUD_AGENT)
    shell.tasks("sum")
    done = shell.finished_run("--max-retry", 0, "--group-refill", 0)
    shell.holdfast("report", "r", "--out", "page.html")
    message = everything_written(shell, done) + (shell.place / "page.html").read_text()
    assert "exit code 3" in message
    assert CANARY not in message


def test_words_to_go_on_with_have_no_password(monkeypatch):
    url, bare = "postgresql://me:pass[word@db/x", "postgresql://me@db/x"
    monkeypatch.setattr(sys, "argv", ["holdfast", "runs", "--journal", url, f"--journal={url}"])
    _take_passwords(Namespace(journal=url))
    assert sys.argv[1:] == ["runs", "--journal", bare, f"--journal={bare}"]
    assert address_of(bare).password == "pass[word"
