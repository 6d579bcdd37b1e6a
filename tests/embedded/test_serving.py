"""The process: how it starts, says where it is, and ends."""

import argparse
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.cli.commands.serving.serve import serve as run_serve
from holdfast.cli.options.run import add_serve
from holdfast.embedded import EmbeddedEngine, ServeSettings, arguments, serve, serving
from holdfast.embedded.child_process import EngineDidNotStart
from holdfast.embedded.model import load as folder_of_a_model
from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.records.errors import UsageError
from support.embedded.client import SECONDS, completion, until
from support.embedded.processes import gone

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "serve", *command],
        capture_output=True, text=True, timeout=SECONDS, check=False, env=ONE_THREAD, **options,
    )  # fmt: skip


def test_a_child_serves_and_answers_what_is_in_flight_when_stopped(
    folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "serve.log"
    options = ("--served-model-name", "mine", "--version", "v7", "--max-model-len", "900")
    engine = EmbeddedEngine(folder, log=log, options=options)
    with engine:
        assert engine.model == "mine"
        assert engine.url.startswith("http://127.0.0.1:")
        assert engine.running
        os.kill(engine.pid, 0)
        with urllib.request.urlopen(f"{engine.url}/v1/models") as response:
            assert b'"max_model_len":900' in response.read()
        whole, cut = asyncio.run(_stopped_in_flight(engine))
    assert whole["weight_versions"] == [{"version": "v7", "start": 0, "end": 8}]
    assert cut["finish_reason"] == "abort"
    assert cut["token_ids"][:8] == whole["token_ids"]
    assert not engine.running
    assert engine.stop() == 0
    assert log.read_text() == "", "nothing to complain about"


async def _stopped_in_flight(engine: EmbeddedEngine) -> tuple[Any, Any]:
    whole = await _complete(engine.url, model="mine", ignore_eos=True)
    long = _complete(engine.url, model="mine", ignore_eos=True, max_tokens=890)
    in_flight = asyncio.create_task(long)
    while await _sampled(engine.url) < 8 + 8:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(engine.stop)
    return whole["choices"][0], (await in_flight)["choices"][0]


async def _sampled(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        text = await response.text()
    results = re.search(r"^holdfast_generation_tokens_total\S* (\d+)", text, re.MULTILINE)
    assert results is not None
    return int(results[1])


async def _complete(url: str, **changes: Any) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/completions", json=completion(**changes)) as response,
    ):
        assert response.status == 200, await response.text()
        return await response.json()


def test_it_ends_with_a_parent_that_is_killed(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from holdfast.embedded import EmbeddedEngine\n"
        f"engine = EmbeddedEngine(Path({str(folder)!r}), log=Path({str(tmp_path / 'log')!r}))\n"
        "engine.start(); print(engine.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=ONE_THREAD
    )
    assert parent.stdout is not None
    with parent.stdout as out:
        pid = int(out.readline())
    os.kill(pid, 0)
    parent.kill()
    parent.wait()
    assert gone(pid)


def test_a_child_that_refuses_its_folder_says_why(tmp_path: Path) -> None:
    engine = EmbeddedEngine(tmp_path)
    with pytest.raises(UsageError, match=r"did not start: /.* no config\.json"):
        engine.start()
    assert not engine.running


def test_a_child_that_is_not_ready_in_time_is_ended(folder: Path) -> None:
    engine = EmbeddedEngine(folder, ready_within=0.05)
    with pytest.raises(EngineDidNotStart, match=r"not ready within 0\.05 s"):
        engine.start()
    assert not engine.running


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    with pytest.raises(UsageError, match="--api-key-env"):
        serve(ServeSettings(host=host))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--model", "/nowhere"], "there is no folder /nowhere"),
        (["--port", "70000"], "not between 0 and 65535"),
        (["--max-batch", "0"], "not between 1 and 1024"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--host", "0.0.0.0"], "--api-key-env"),
    ],
)
def test_a_bad_command_line_is_one_line_and_2(command: list[str], message: str) -> None:
    done = run(*command)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_command_takes_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_serve(parser.add_subparsers(dest="command").add_parser("serve"))
    monkeypatch.setenv("A_KEY", "s3cret")
    text = "serve --host 0.0.0.0 --model m --version v3 --threads 2 --api-key-env A_KEY"
    assert arguments.settings(parser.parse_args(text.split())) == ServeSettings(
        host="0.0.0.0", model=Path("m"), version="v3", threads=2, api_key="s3cret"
    )
    with pytest.raises(UsageError, match="there is no folder /nowhere"):
        run_serve(parser.parse_args(["serve", "--model", "/nowhere"]))


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(path: Path, **_: object) -> None:
        raise AssertionError(f"{path} was loaded in vain")

    monkeypatch.setattr(folder_of_a_model, "load", load)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"cannot listen on 127\.0\.0\.1:{port}.*--port 0"):
            serve(ServeSettings(port=port))


def test_nobody_waits_at_a_port_while_the_model_is_loaded() -> None:
    with (
        serving.bind_port(ServeSettings(port=0)) as sock,
        socket.socket() as client,
        pytest.raises(ConnectionRefusedError),
    ):
        client.connect(sock.getsockname())


def test_of_two_that_have_taken_one_port_the_second_is_told_when_it_listens(
    own_engine: DecodeEngine,
) -> None:
    with serving.bind_port(ServeSettings(port=0)) as first:
        settings = ServeSettings(port=first.getsockname()[1])
        with serving.bind_port(settings) as second:
            first.listen()
            with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1.*--port 0"):
                asyncio.run(serving._listen(own_engine, settings, sock=second, name="tiny"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it(
    own_engine: DecodeEngine, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    texts: list[str] = []
    settings = ServeSettings(port=0)
    sock = serving.bind_port(settings)
    listening = asyncio.create_task(serving._listen(own_engine, settings, sock=sock, name="tiny"))
    await until(lambda: "serving" in (texts.append(capsys.readouterr().out) or "".join(texts)))
    os.kill(os.getpid(), number)
    await listening
    assert "".join(texts).startswith("serving tiny at http://127.0.0.1:")
    assert not own_engine._thread.is_alive()


def test_it_says_what_it_is_loading(capsys: pytest.CaptureFixture[str]) -> None:
    serving.report_stage(ServeSettings(), "loading /models/tiny")
    assert capsys.readouterr().err == "holdfast: loading /models/tiny …\n"
    serving.report_stage(ServeSettings(progress=True), "loading /models/tiny")
    assert capsys.readouterr() == ("starting: loading /models/tiny\n", "")
