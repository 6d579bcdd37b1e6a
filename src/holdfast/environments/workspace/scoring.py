"""Scores the files of a workspace by running a command in a folder that the policy cannot reach.

First the workspace's files are copied into the folder, then the scorer's files. The folder is
removed afterwards, and the workspace does not change. Files that configure the tests
(`TEST_CONFIGURATION`) are not copied from the workspace.
"""

import os
import re
from collections.abc import Mapping

from msgspec import Struct

from holdfast.environments.workspace.files import Files
from holdfast.environments.workspace.folder import remove
from holdfast.environments.workspace.sandbox.command import CommandEnded
from holdfast.environments.workspace.source import as_bytes, copy, digest_of, write_all
from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import Observation

PREFIX = "holdfast scoring "
REPORT = ".holdfast-report.xml"
TEST_CONFIGURATION = frozenset(
    {
        *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
        *("setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py"),
    }
)
PYTEST = re.compile(r"""(^|[\s/;&|("'])(pytest|py\.test)($|[\s;&|)"'])""")
MAX_KNOWN = 10_000
_known: dict[str, None] = {}
"""The latest scoring actions that any workspace of this process has made."""
_SUITE = re.compile(rb"<testsuite\b[^>]*>")
_COUNT = re.compile(rb'\b(tests|failures|errors|skipped)="(\d{1,9})"')


class WorkspaceScoring(Struct, frozen=True):
    """A command with its files, which scores a workspace."""

    command: str
    files: Mapping[str, bytes]
    keep: tuple[str, ...] | None
    timeout: float | None

    @property
    def action(self) -> str:
        """The action for `step` that runs this scoring. It contains a digest, so a policy that does
        not know the scorer's files cannot guess it."""
        kept = ("*",) if self.keep is None else ("", *self.keep)
        return PREFIX + digest_of(self.files, self.command, str(self.timeout), *kept)

    @property
    def is_pytest(self) -> bool:
        return PYTEST.search(self.command) is not None


class Counts(Struct, frozen=True):
    """The numbers of tests in a pytest run, by their results."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, name)} {name}" for name in self.__struct_fields__)

    @property
    def is_success(self) -> bool:
        return self.passed > 0 and not self.failed and not self.errors


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
    _known.pop(made.action, None)
    _known[made.action] = None
    if len(_known) > MAX_KNOWN:
        del _known[next(iter(_known))]
    return made


def check_not_scoring(action: str) -> None:
    """Raises `UsageError` if another workspace made this scoring action.

    If the action were run as a shell command, its failure would look like the policy's. For a
    scoring action that no workspace made, no error is raised, because a policy could otherwise
    avoid its reward by inventing such an action.
    """
    if action in _known:
        raise UsageError(
            "this scoring was made by another workspace: call `scoring` on the instance that is "
            "stepped, which is `episode.environment`"
        )


def prepare(scoring: WorkspaceScoring, workspace: str, files: Files) -> None:
    """Copies the workspace's files and then the scorer's files into `files`, an empty folder."""
    kept = None if scoring.keep is None else {os.fsencode(path) for path in scoring.keep}
    copy(workspace, files.root, include=lambda path: _is_copied(path, kept))
    for path in scoring.files:
        _clear(files.root, path)
    write_all(scoring.files, files)


def _is_copied(path: bytes, kept: set[bytes] | None) -> bool:
    if path == os.fsencode(REPORT):
        return False
    if kept is not None and path in kept:
        return True
    names = path.decode("utf-8", "replace").split("/")
    # Bytecode can be marked so that Python does not compare it with its source.
    if names[-1] in TEST_CONFIGURATION or "__pycache__" in names:
        return False
    if kept is None:
        return True
    return any(path.startswith(top + b"/") or top.startswith(path + b"/") for top in kept)


def _clear(root: str, path: str) -> None:
    """Removes a file of the policy if it is in the way: a scorer's file or its folder has to be
    written at that path."""
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        where = os.path.join(root, *names[:depth])
        if os.path.islink(where) or not os.path.isdir(where) or depth == len(names):
            if os.path.lexists(where):
                remove(where)
            return


def environment(scoring: WorkspaceScoring, home: str, env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a scoring command has in addition to `env`, the variables of every
    command."""
    if not scoring.is_pytest:
        return {"PYTHONNOUSERSITE": "1"}
    # The interpreter lists Holdfast's own plugin, but the sandbox cannot import it.
    options = f"-p no:cacheprovider -p no:holdfast --junitxml={home}/{REPORT}"
    options = f"{env.get('PYTEST_ADDOPTS', '')} {options}".strip()
    return {"PYTHONNOUSERSITE": "1", "PYTEST_ADDOPTS": options}


def observe(
    scoring: WorkspaceScoring, ended: CommandEnded, files: Files, *, text: str
) -> Observation:
    """Returns the result of a scoring. For pytest, the counts in its report decide, too, because
    tests can make pytest exit early with 0."""
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
    """Reads the counts from pytest's report. Returns None if there is no report."""
    try:
        match = _SUITE.search(files.read(REPORT))
    except ToolSaysNo:
        return None
    if match is None:
        return None
    numbers = {name.decode(): int(number) for name, number in _COUNT.findall(match[0])}
    failed, errors, skipped = (numbers.get(name, 0) for name in ("failures", "errors", "skipped"))
    passed = max(0, numbers.get("tests", 0) - failed - errors - skipped)
    return Counts(passed, failed, errors, skipped)
