"""Scoring what is in a workspace by running a command, in a folder that the policy never had.

The folder holds what is kept of the workspace and then the scorer's own files; it is removed
afterwards, and the workspace is as it was. Files that steer the tests from outside of them
(`STEERING`) are not taken over from the workspace.
"""

import os
import re
from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from holdfast.environments.workspace.files import Files
from holdfast.environments.workspace.folder import remove
from holdfast.environments.workspace.sandbox.command import CommandEnded
from holdfast.environments.workspace.source import as_bytes, copy, digest_of, put
from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import Observation

PREFIX = "holdfast scoring "
REPORT = ".holdfast-report.xml"
STEERING = frozenset(
    {
        *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
        *("setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py"),
    }
)
PYTEST = re.compile(r"""(^|[\s/;&|("'])(pytest|py\.test)($|[\s;&|)"'])""")
MOST_KNOWN = 10_000
_made: dict[str, None] = {}
"""The actions that this process made last, by whichever workspace."""
_SUITE = re.compile(rb"<testsuite\b[^>]*>")
_COUNT = re.compile(rb'\b(tests|failures|errors|skipped)="(\d{1,9})"')


class WorkspaceScoring(Struct, frozen=True):
    """One way to score a workspace."""

    command: str
    files: Mapping[str, bytes]
    keep: tuple[str, ...] | None
    timeout: float | None

    @property
    def action(self) -> str:
        """What `step` takes for it. The policy cannot say it without knowing the files."""
        kept = ("*",) if self.keep is None else ("", *self.keep)
        return PREFIX + digest_of(self.files, self.command, str(self.timeout), *kept)

    @property
    def is_pytest(self) -> bool:
        return PYTEST.search(self.command) is not None


class Counts(Struct, frozen=True):
    """Of a pytest run."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, name)} {name}" for name in self.__struct_fields__)

    @property
    def is_success(self) -> bool:
        return self.passed > 0 and not self.failed and not self.errors


class ScoringHome(Protocol):
    """What a command calls its home."""

    def home(self, folder: str) -> str: ...


def make(
    command: str,
    files: Mapping[str, str | bytes],
    *,
    keep: tuple[str, ...] | None,
    timeout: float | None,
) -> WorkspaceScoring:
    for path in (*files, *(keep or ())):
        parts = path.split("/")
        if path.startswith("/") or ".." in parts:
            raise UsageError(f"scoring: {path!r} is not a path within the workspace")
    normal = None if keep is None else tuple(os.path.normpath(path) for path in keep)
    if normal is not None and "." in normal:
        normal = None
    contents = {os.path.normpath(path): as_bytes(path, body) for path, body in files.items()}
    made = WorkspaceScoring(command, contents, normal, timeout)
    _made.pop(made.action, None)
    _made[made.action] = None
    if len(_made) > MOST_KNOWN:
        del _made[next(iter(_made))]
    return made


def check_none(action: str) -> None:
    """Run as a command, another workspace's scoring would look like a failure of the policy. What
    nobody made is the policy's own words, and no error: that would be an escape from a reward."""
    if action in _made:
        raise UsageError(
            "this scoring was made by another workspace: call `scoring` on the instance that is "
            "stepped, which is `episode.environment`"
        )


def prepare(scoring: WorkspaceScoring, workspace: str, files: Files) -> None:
    """Fills the empty folder of `files`."""
    kept = None if scoring.keep is None else {os.fsencode(path) for path in scoring.keep}
    copy(workspace, files.root, wanted=lambda path: _is_wanted(path, kept))
    for path in scoring.files:
        _clear(files.root, path)
    put(scoring.files, files)


def _is_wanted(path: bytes, kept: set[bytes] | None) -> bool:
    if path == os.fsencode(REPORT):
        return False
    if kept is not None and path in kept:
        return True
    names = path.decode("utf-8", "replace").split("/")
    # Bytecode may say that it is not to be compared with its source.
    if names[-1] in STEERING or "__pycache__" in names:
        return False
    if kept is None:
        return True
    return any(path.startswith(one + b"/") or one.startswith(path + b"/") for one in kept)


def _clear(root: str, path: str) -> None:
    """Whatever the policy put where a scorer's file belongs."""
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        where = os.path.join(root, *names[:depth])
        if os.path.islink(where) or not os.path.isdir(where) or depth == len(names):
            if os.path.lexists(where):
                remove(where)
            return


def environment(scoring: WorkspaceScoring, home: str, given: Mapping[str, str]) -> dict[str, str]:
    """Variables for the command besides those that all commands get (`given`)."""
    if not scoring.is_pytest:
        return {"PYTHONNOUSERSITE": "1"}
    # Our own plugin is registered with the interpreter, and need not be seen from in there.
    options = f"-p no:cacheprovider -p no:holdfast --junitxml={home}/{REPORT}"
    options = f"{given.get('PYTEST_ADDOPTS', '')} {options}".strip()
    return {"PYTHONNOUSERSITE": "1", "PYTEST_ADDOPTS": options}


def observe(
    scoring: WorkspaceScoring, ended: CommandEnded, files: Files, *, text: str
) -> Observation:
    """What pytest counted decides, where it ran: leaving early with 0 proves nothing."""
    info: dict[str, object] = {
        "exit_code": ended.exit_code, "stopped": ended.stopped, "output": text
    }  # fmt: skip
    passes = ended.exit_code == 0 and not ended.stopped
    ending = f"[{ended.stopped}]" if ended.stopped else f"[exit code {ended.exit_code}]"
    if not scoring.is_pytest:
        return Observation(ending, float(passes), info=info)
    counts = _counts(files) or Counts()
    info |= {name: getattr(counts, name) for name in counts.__struct_fields__}
    passes = passes and counts.is_success
    return Observation(f"{counts}\n{ending}", float(passes), info=info)


def _counts(files: Files) -> Counts | None:
    """From pytest's report; nothing, if it wrote none."""
    try:
        found = _SUITE.search(files.read(REPORT))
    except ToolSaysNo:
        return None
    if found is None:
        return None
    numbers = {name.decode(): int(number) for name, number in _COUNT.findall(found[0])}
    failed, errors, skipped = (numbers.get(name, 0) for name in ("failures", "errors", "skipped"))
    passed = max(0, numbers.get("tests", 0) - failed - errors - skipped)
    return Counts(passed, failed, errors, skipped)
