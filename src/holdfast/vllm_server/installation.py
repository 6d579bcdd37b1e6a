"""Finds out which vLLM a Python has, without importing vLLM, which would take half a minute."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from holdfast.records.errors import UsageError

OLDEST, NEWEST = (0, 26), (0, 32)
"""The oldest and newest version with which Holdfast was tried. docs/engines.md has the table."""
INSTALL = (
    "install one (python3 -m venv .vllm && .vllm/bin/pip install vllm) and name its Python with "
    "--engine-python .vllm/bin/python"
)
_SECONDS = 60.0
_LOOK = """
import json, sys
from importlib import metadata, util
spec = util.find_spec("vllm")
if spec is None or not spec.origin:
    sys.exit(3)
names = metadata.packages_distributions().get("vllm") or ["vllm"]
version = metadata.version(names[0])
print(json.dumps({"version": version, "name": names[0], "origin": spec.origin}))
"""


class Installation(Struct, frozen=True):
    """A vLLM installation, and the Python that has it."""

    python: str
    version: str
    folder: Path
    """The folder of the package."""
    is_cpu: bool = False
    """Whether this vLLM is built for the CPU."""

    @property
    def number(self) -> tuple[int, int]:
        """Returns the version as a tuple: (0, 32) for 0.32.0. It is (0, 0) if the version contains
        no number."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def caveat(self) -> str:
        """Returns a line about a version that was never tried with Holdfast; "" for other
        versions."""
        if OLDEST <= self.number <= NEWEST:
            return ""
        tried = f"{_dotted(OLDEST)} to {_dotted(NEWEST)}"
        return f"vllm {self.version} was never tried with Holdfast, which was tried with {tried}"

    def knows(self, option: str) -> bool:
        """Returns whether vLLM's command line has the option. Looks in its source, because
        versions differ.
        """
        name = option.removeprefix("--").replace("-", "_")
        sources = self.folder.glob("entrypoints/**/cli_args.py")
        return any(name in _text(source) for source in sources)

    def has_route(self, path: str) -> bool:
        """Returns whether vLLM's server has a route. Looks in its source, as `knows` does."""
        return any(path in _text(source) for source in self.folder.glob("entrypoints/**/*.py"))


def find_vllm(python: str) -> Installation:
    """Finds the vLLM of a Python. For "", takes the Python that runs this process.

    Raises `UsageError` with the command that installs a vLLM.
    """
    path = python or sys.executable
    if shutil.which(path) is None:
        raise UsageError(f"--engine-python {path}: there is no such program")
    command = [path, "-c", _LOOK]
    # Otherwise a folder called vllm in the working folder would be imported as the package.
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    try:
        process = subprocess.run(  # noqa: S603  # the user's own Python, our own code
            command, capture_output=True, text=True, timeout=_SECONDS, env=environment, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--engine-python {path} does not run: {error}") from error
    if process.returncode == 3:
        raise UsageError(f"{path} has no vLLM: {INSTALL}")
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise UsageError(f"--engine-python {path} is not a Python with a vLLM: {last}")
    fields = json.loads(process.stdout)
    version = str(fields["version"])
    is_cpu = "cpu" in version or "cpu" in str(fields["name"])
    return Installation(path, version, Path(fields["origin"]).parent, is_cpu)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _dotted(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))
