"""The process of `holdfast serve --engine vllm`: what it says, and how it fails."""

import json
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from holdfast.embedded.arguments import VllmSettings
from holdfast.embedded.child_process import EmbeddedEngine
from holdfast.records.errors import UsageError
from support.conformance.engines import TINY
from support.vllm_server.stand_in import SECONDS, StandIn

pytestmark = pytest.mark.timeout(300)


def serve(stand_in: StandIn, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "holdfast", "serve", "--engine", "vllm", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False,
        env=stand_in.environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def version_of(url: str) -> str:
    with urllib.request.urlopen(f"{url}/weight_info", timeout=SECONDS) as answer:
        return str(json.loads(answer.read())["weight_version"])


def test_it_is_started_and_started_again_as_the_embedded_engine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another version at the same address, which it names before it says that it serves."""
    stand_in = StandIn(tmp_path)
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    lines: list[str] = []
    engine = EmbeddedEngine(
        log=tmp_path / "engine.log",
        options=("--version", "step-1", "--served-model-name", "policy"),
        report=lines.append,
        vllm=VllmSettings(python=str(stand_in.python), options="--max-num-seqs 7"),
    )
    with engine:
        url = engine.url
        assert engine.model == "policy"
        assert version_of(url) == "step-1"
        port = url.rpartition(":")[2]
        how = "logprobs of the sampled distribution"
        assert f"engine: vllm 0.32.0, started here (port {port}), {how}" in lines
        more = stand_in.started()["more"]
        assert isinstance(more, list)
        assert more[-2:] == ["--max-num-seqs", "7"], "the user's own come last"
        assert "--enable-scale-out" in more
        newer = tmp_path / "step-2"
        shutil.copytree(TINY, newer)
        engine.serve_instead(
            newer, options=("--version", "step-2", "--served-model-name", "policy")
        )
        engine.kill()
        stand_in.wait_until_gone()
        engine.restart()
        assert engine.url == url
        assert version_of(url) == "step-2"
        assert stand_in.started()["model"] == str(newer.resolve())
    assert "Loading model weights" in (tmp_path / "engine.log").read_text()
    stand_in.wait_until_gone()


@pytest.mark.parametrize(
    ("fault", "error"),
    [("fails", "ValueError: No weights in /models/broken"), ("ends", "RuntimeError: head_dim=16")],
)
def test_a_model_that_cannot_be_loaded_or_sampled_is_an_error_in_vllms_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, error: str
) -> None:
    stand_in = StandIn(tmp_path, fault=fault)
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    engine = EmbeddedEngine(
        log=tmp_path / "engine.log", vllm=VllmSettings(python=str(stand_in.python))
    )
    with pytest.raises(UsageError) as caught:
        engine.start()
    assert str(caught.value) == f"vLLM did not start: vLLM ended with exit status 1: {error}"
    stand_in.wait_until_gone()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--engine-python", "/no/such/python"), "there is no such program"),
        (("--engine-python", sys.executable), "has no vLLM: install one (python3 -m venv"),
        (("--engine-python", "/bin/false"), "is not a Python with a vLLM"),
        (("--host", "0.0.0.0"), "can be reached from other machines"),
        (("--model", "/no/such/folder"), "there is no folder /no/such/folder"),
        (("--engine-memory", "1.5"), "wants a share above 0 and up to 1"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_started(
    arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    stand_in = StandIn(tmp_path)
    lines = (
        arguments
        if "--engine-python" in arguments
        else ("--engine-python", str(stand_in.python), *arguments)
    )
    done = serve(stand_in, *lines)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert stand_in.processes() == []


def test_a_port_in_use_is_named_before_vllm_is_started(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = serve(stand_in, "--engine-python", str(stand_in.python), "--port", port)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--port 0 takes a free one" in done.stderr


def test_a_version_that_nobody_tried_is_started_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = StandIn(tmp_path, version="0.19.1")
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    lines: list[str] = []
    vllm = VllmSettings(python=str(stand_in.python))
    with EmbeddedEngine(log=tmp_path / "log", report=lines.append, vllm=vllm):
        warned = (
            "engine: vllm 0.19.1 was never tried with Holdfast, which was tried with 0.26 to 0.32"
        )
        assert warned in lines


def test_options_of_vllm_without_it_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "serve", "--engine-memory", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--engine-memory belongs to --engine vllm: give that, too" in done.stderr
