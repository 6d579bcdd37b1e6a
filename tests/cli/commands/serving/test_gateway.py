"""`holdfast gateway`: mistakes are named before anything is begun, and https is served to those who
know the token."""

import json
import os
import socket
import ssl
import stat
import subprocess
import urllib.error
import urllib.request

import pytest

from holdfast.cli.main import main
from holdfast.testing import FakeEngine
from support.gateway.gateway_process import REPLIES, GatewayProcess, until

TOKEN = "a-token-of-some-length"


def certify(folder, name: str = "own", *more: str):
    """A certificate of its own making for localhost, and its key."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    arguments = ("openssl", "req", "-x509", *curve, "-days", "2")
    subprocess.run(
        [*arguments, *(more or ["-nodes"]), "-keyout", key, "-out", certificate,
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch):
    """What is said of a command that is not begun."""
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "prompt": "do a"}\n')
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        before = set(tmp_path.iterdir())
        options = [
            "gateway",
            "--tasks",
            "tasks.jsonl",
            "--run",
            "r",
            "--policy",
            "http://127.0.0.1:9",
        ]
        try:
            code = main([*options, *(str(word) for word in arguments)])
        except SystemExit as error:
            code = error.code
        assert code == 2
        lines = capsys.readouterr().err.splitlines()
        assert set(tmp_path.iterdir()) == before, "nothing was begun"
        assert lines[-1].startswith("holdfast: ")
        return lines[-1]

    return run


def test_each_bad_file_of_tls_is_named(tmp_path, refused):
    certificate, key = certify(tmp_path)
    _, other = certify(tmp_path, "other")
    _, locked = certify(tmp_path, "locked", "-passout", "pass:secret-words")
    (tmp_path / "text").write_text("no PEM at all")
    missing = tmp_path / "missing"
    assert "of no use without --tls-key" in refused("--tls-cert", certificate)
    assert "of no use without --tls-cert" in refused("--tls-key", key)
    for options, text in (
        ((missing, key), f"the certificate {missing} cannot be read"),
        ((certificate, missing), f"the key {missing} cannot be read"),
        ((tmp_path, key), "Is a directory"),
        (("text", key), "text holds no certificate in PEM"),
        ((certificate, "text"), "text holds no key in PEM"),
        ((certificate, other), "does not belong to the certificate"),
        ((certificate, locked), "can be read without a password"),
    ):
        line = refused("--tls-cert", options[0], "--tls-key", options[1])
        assert text in line
        assert "secret-words" not in line


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_loopback_a_token_is_wanted(refused, host):
    assert "give it a token" in refused("--host", host)


@pytest.mark.parametrize("ignored", ["messages", "seed,", "seed, top_k", "tools", "tool:"])
def test_what_cannot_be_ignored_is_named(refused, ignored):
    assert "cannot be ignored" in refused("--ignore", ignored)


def test_a_journal_that_keeps_nothing_is_refused(refused):
    assert "name a file" in refused("--journal", "memory:")


def test_a_token_that_is_none_is_refused(refused, monkeypatch):
    assert "variable is not set" in refused("--token-env", "NO_SUCH_TOKEN")
    monkeypatch.setenv("SHORT_TOKEN", "short")
    assert "at least 16 characters" in refused("--token-env", "SHORT_TOKEN")


def test_fewer_trajectories_at_once_than_workers_are_refused(refused):
    line = refused("--workers", 3, "--concurrency", 2)
    assert "--workers 3 with --concurrency 2" in line


@pytest.mark.parametrize(
    "options", ["", "a b", "ftp://x", "http://", "http://x?y", "http://x/a b", "x/y", "u@h"]
)
def test_what_is_no_address_is_not_advertised(refused, options):
    assert "not an address to advertise" in refused("--advertise", options)


def test_an_address_that_cannot_be_listened_at_is_named(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = refused("--port", taken.getsockname()[1])
    assert "cannot listen at" in line
    assert "in use" in line
    assert "cannot listen at" in refused("--host", "no-such-host.invalid", *token())
    assert "65535" in refused("--port", 70000)


def token() -> tuple[str, str]:
    os.environ["GATEWAY_TOKEN"] = TOKEN
    return "--token-env", "GATEWAY_TOKEN"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", 0), "--workers"),
        (("--workers", "many"), "--workers"),
        (("--max-body", 0), "--max-body"),
        (("--drain", -1), "--drain"),
        (("--rejoin", "nan"), "--rejoin"),
        (("--silence", 0), "--silence must be more than 0"),
        (("--log", "no/such/folder/log"), "--log no/such/folder/log"),
    ],
)
def test_bad_numbers_and_files_are_named(refused, arguments, message):
    assert message in refused(*arguments)


@pytest.mark.parametrize("workers", [1, 2])
def test_https_is_served_beyond_loopback_to_those_who_know_the_token(tmp_path, workers):
    certificate, key = certify(tmp_path)
    trusted = ssl.create_default_context(cafile=str(certificate))
    with FakeEngine(replies=REPLIES) as engine:
        gateway = GatewayProcess(
            tmp_path, engine, "--tls-cert", certificate, "--tls-key", key, *token(),
            "--host", "0.0.0.0", "--advertise", "localhost", "--workers", workers, tasks=("a",),
        )  # fmt: skip
        url = f"https://localhost:{gateway.port}"

        def post(path: str, body: object, bearer: str) -> tuple[int, dict]:
            headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
            request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
            try:
                with urllib.request.urlopen(request, context=trusted) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)
            except OSError:
                return 0, {}

        try:
            gateway.start(GATEWAY_TOKEN=TOKEN)
            until(lambda: post("/trajectories", {}, "x" * 20)[0] == 401)
            status, taken = post("/trajectories", {"wait": 20}, TOKEN)
            assert status == 200
            assert taken["openai_base_url"] == f"{url}/v1"
            body = {"model": "m", "messages": taken["task"]["messages"]}
            assert post("/v1/chat/completions", body, taken["key"])[0] == 200
            assert post("/v1/chat/completions", body, TOKEN)[0] == 401
            assert post("/complete", {"reward": 1}, taken["key"])[0] == 200
            assert gateway.ended() == 0, gateway.output
            assert f"{url}/trajectories" in gateway.output
        finally:
            gateway.close()
    secret = tmp_path / "journal.db.gateway-secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    for path in tmp_path.iterdir():
        if path.suffix not in (".key", ".gateway-secret"):
            data = path.read_bytes()
            assert TOKEN.encode() not in data, path
            assert taken["key"].encode() not in data, path
    assert TOKEN not in gateway.output
