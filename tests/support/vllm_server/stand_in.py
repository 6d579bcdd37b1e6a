"""A Python that has a vLLM: this one, with a package of that name."""

import json
import os
import sys
import time
from pathlib import Path

from support.paths import ROOT, TESTS
from support.vllm_server.api_server import FAULT, RECORD

SECONDS = 120.0
SRC = ROOT / "src"
_SERVER = """
from support.vllm_server.api_server import main
if __name__ == "__main__":
    main()
"""


class StandIn:
    """`python` is what `--engine-python` takes; `environment` what the command needs."""

    def __init__(self, folder: Path, *, version: str = "0.32.0", fault: str = ""):
        self._record = folder / "started.json"
        packages = folder / "packages"
        server = packages / "vllm" / "entrypoints" / "openai"
        server.mkdir(parents=True)
        for part in (packages / "vllm", packages / "vllm" / "entrypoints", server):
            (part / "__init__.py").touch()
        (server / "api_server.py").write_text(_SERVER)
        (server / "cli_args.py").write_text("enable_scale_out: bool = False\n")
        described = packages / f"vllm-{version}.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
        (described / "top_level.txt").write_text("vllm\n")
        path = os.pathsep.join(map(str, (packages, TESTS, SRC)))
        self.python = folder / "python"
        self.python.write_text(
            f'#!/bin/sh\nPYTHONPATH="{path}:$PYTHONPATH" exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o700)
        temporary = folder / "tmp"
        temporary.mkdir()
        self.environment = os.environ | {
            FAULT: fault,
            RECORD: str(self._record),
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(SRC),
        }
        self.places = temporary / f"holdfast-vllm-{os.geteuid()}"
        """Where the folders of running engines are."""

    def started(self) -> dict[str, object]:
        """How it was started, once it was."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                return dict(json.loads(self._record.read_text()))
            except (FileNotFoundError, ValueError):
                time.sleep(0.02)
        raise AssertionError("it was never started")

    def processes(self) -> list[int]:
        """Its processes that run now: all that have its place in their environment."""
        return [pid for pid in _pids() if str(self.places).encode() in _environment(pid)]

    def wait_until_gone(self) -> None:
        deadline = time.monotonic() + SECONDS
        while left := self.processes():
            assert time.monotonic() < deadline, f"{left} outlived it"
            time.sleep(0.05)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> bytes:
    """Of a process that is none of our own commands; b"" for one that is gone."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    return next((v for v in variables if v.startswith(b"HOLDFAST_ENGINE_PLACE=")), b"")
