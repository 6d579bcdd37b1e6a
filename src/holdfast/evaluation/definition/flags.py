"""The flags of the pytest plugin.

Each flag is called `--holdfast-…`, and also `--ep-…` if eval-protocol has it. If eval-protocol's
own plugin is installed, it registers the `--ep-…` flags, and their values are read from there. So a
flag has the same meaning for evaluations of Holdfast, whichever plugin registered it. An invalid
value is refused with the name of its flag. The module imports nothing slow, because sessions
without evaluations import it, too.
"""

import json
import os
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.engine import options
from holdfast.engine.option_kinds import FINITE, POSITIVE, Whole
from holdfast.engine.options import Option, switch

if TYPE_CHECKING:
    import pytest

PREFIX = "holdfast_"
"""The prefix of the names under which pytest keeps the values."""
JOURNAL = ".holdfast/evaluations.db"
"""The default journal of evaluations, under pytest's rootdir."""
FAILS = options.FAIL_ON_PERMANENT_FAILURE._replace(default=None)
_FAILS_DEST = PREFIX + FAILS.dest
_OURS = {
    "policy",
    options.PATIENCE.name,
    "resume",
    "new",
    "retry-failed",
    FAILS.name,
    "clustered-se-threshold",
    "journal",
    "report",
    "view",
    options.OTEL.name,
    *(option.name for option in options.SPENDING),
}
"""Flags that eval-protocol does not have."""
_EVAL_PROTOCOL_NAMES = {"max-concurrency": "max-concurrent-rollouts", "summary": "summary-json"}
"""Flags that have another name in eval-protocol."""
_FAIL_ON_MAX_RETRY, _NO_UPLOAD = "--ep-fail-on-max-retry", "--ep-no-upload"


def register(parser: "pytest.Parser", *, with_eval_protocol: bool | None = None) -> None:
    """Adds all flags. `with_eval_protocol` adds eval-protocol's flags, too; None adds them if
    eval-protocol is not installed."""
    if with_eval_protocol is None:
        with_eval_protocol = find_spec("eval_protocol") is None
    group = parser.getgroup("holdfast", "evaluations (holdfast)")
    for option in _options():
        names = [f"--holdfast-{option.name}"]
        if with_eval_protocol and option.name not in _OURS:
            names.append(_eval_protocol_flag(option))
        group.addoption(*names, **{"dest": PREFIX + option.dest, **option.keywords()})
    group.addoption(
        f"--holdfast-no-{FAILS.name}",
        dest=_FAILS_DEST,
        action="store_false",
        default=None,
        help="count and show rows that failed for good, but do not fail their tests",
    )
    if with_eval_protocol:
        group.addoption(
            f"--ep-{FAILS.name}",
            _FAIL_ON_MAX_RETRY,
            dest=_FAILS_DEST,
            type=_truth,
            metavar="true|false",
            help="fail a test if one of its rows failed for good (default: true)",
        )
        group.addoption(
            _NO_UPLOAD,
            dest=PREFIX + "no_upload",
            action="store_true",
            help="has no effect, because Holdfast never uploads results",
        )


def _options() -> Iterator[Option]:
    yield from (*_ROWS, *_WORK, *_JUDGING, *_FILES)


def _eval_protocol_flag(option: Option) -> str:
    return f"--ep-{_EVAL_PROTOCOL_NAMES.get(option.name, option.name)}"


# --- flags that eval-protocol's plugin has registered


def take_over(values: dict[str, Any], arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    """Adds to Holdfast's `values` the `--ep-…` flags that eval-protocol's plugin has parsed. A
    `--holdfast-…` flag takes precedence over the `--ep-…` flag. `arguments` are the words of the
    command line.

    Returns the names of the flags that got a value, and messages about the other flags: an invalid
    value, or a flag that Holdfast does not have.
    """
    taken, wrong = set(), []
    known = {_FAIL_ON_MAX_RETRY, _NO_UPLOAD, f"--ep-{FAILS.name}"}
    for option in (option for option in _options() if option.name not in _OURS):
        flag = _eval_protocol_flag(option)
        known.add(flag)
        theirs = values.get(_dest(flag))
        if not _is_set(theirs) or _is_set(values.get(PREFIX + option.dest)):
            continue
        try:
            values[PREFIX + option.dest] = _read(option, theirs)
            taken.add(option.name)
        except ArgumentTypeError as error:
            wrong.append(f"{flag} {error}")
    # "true" is its default, so nobody can tell whether the user passed it.
    if values.get(_dest(_FAIL_ON_MAX_RETRY)) == "false" and values.get(_FAILS_DEST) is None:
        values[_FAILS_DEST] = False
    named = {word.partition("=")[0] for word in arguments if word.startswith("--ep-")}
    wrong += [f"{flag} means nothing to Holdfast's evaluations" for flag in sorted(named - known)]
    return taken, wrong


def _is_set(value: object) -> bool:
    """Returns whether a flag was given. 0 and an empty text count as given."""
    return value is not None and value is not False and value != []


def _dest(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _read(option: Option, value: Any) -> Any:
    if option.kind is None:
        return value
    return [option.kind(text) for text in value] if isinstance(value, list) else option.kind(value)


# --- values


def _rows(text: str) -> int:
    """Reads a number of rows; -1 stands for "all"."""
    return -1 if text.strip().lower() == "all" else Whole(0)(text)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ArgumentTypeError(f"wants true or false, not {text!r}")
    return text.lower() == "true"


def _word(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("wants a word")
    return text.strip()


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ArgumentTypeError(f"there is no file {text!r}")
    return text


def _folder(text: str) -> str:
    """Checks that a folder can be written to, so that the error comes before the rollouts and not
    hours later. Does not create the folder."""
    path = Path(text).absolute()
    near = next(parent for parent in (path, *path.parents) if parent.exists())
    if not near.is_dir():
        raise ArgumentTypeError(f"{str(near)!r} is not a folder")
    if not os.access(near, os.W_OK):
        raise ArgumentTypeError(f"{str(near)!r} cannot be written to")
    return text


def _target(text: str) -> str:
    if not Path(text).is_file() or text.endswith("/"):
        return _folder(text)
    if not os.access(text, os.W_OK):
        raise ArgumentTypeError(f"{text!r} cannot be written to")
    return text


def _object(text: str) -> dict[str, object]:
    try:
        decoded = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"wants a JSON object: {error}") from None
    if not isinstance(decoded, dict):
        raise ArgumentTypeError(f"wants a JSON object, not {text!r}")
    return decoded


def _params(text: str) -> dict[str, object]:
    if text.startswith("@"):
        try:
            return _object(Path(text[1:]).read_text())
        except OSError as error:
            raise ArgumentTypeError(f"cannot read {text[1:]!r}: {error.strerror}") from None
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"wants KEY=VALUE or @FILE, not {text!r}")
    try:
        return {name: json.loads(value)}
    except ValueError:
        return {name: value}


# --- the flags; where a run has a default, an evaluation has its own, and the flag has none

_ROWS = (
    Option("max-rows", "evaluate only the first N rows of each data set", _rows, None, "N|all"),
    Option("num-runs", "run each evaluation N times", Whole(1), None, "N"),
    Option(
        "jsonl-path",
        "take the rows from this file instead of each evaluation's own",
        _file,
        metavar="FILE",
    ),
    Option(
        "completion-params",
        "use these completion params instead of each evaluation's own; repeatable",
        _object,
        metavar="JSON",
        action="append",
    ),
    Option(
        "input-param",
        "set one completion param in every setting, or the params of a JSON file. Write a file "
        "with = and no space, --holdfast-input-param=@FILE, because pytest itself reads words that "
        "begin with @",
        _params,
        metavar="KEY=VALUE|@FILE",
        action="append",
    ),
    options.REASONING_EFFORT._replace(kind=_word),
    switch("no-op-rollout-processor", "judge the rows as they are, without generating replies"),
)
_WORK = (
    options.POLICY,
    options.CONCURRENCY._replace(
        name="max-concurrency", help="run up to N rollouts at once", default=None
    ),
    options.SCORER_CONCURRENCY._replace(help="judge up to N rows at once", default=None),
    options.MAX_RETRY._replace(
        help="retry a failed rollout up to N times, each time from its journal", default=None
    ),
    options.PATIENCE._replace(
        help="wait this long for an engine that is down, or for a judge's engine (default: 900)",
        default=None,
    ),
    options.MAX_COST._replace(
        help="stop a run when it has cost this much by the table of --holdfast-price; each setting "
        "of each test is a run of its own (default: never)"
    ),
    options.MAX_TOKENS_TOTAL._replace(
        help="stop a run when its prompts and replies have used N tokens together; each setting of "
        "each test is a run of its own (default: never)"
    ),
    options.PRICE,
    switch(
        "resume", "continue the recorded runs; fail if a recorded run differs from the evaluation"
    ),
    switch("new", "begin a new run of each evaluation, and reuse no recorded rollouts"),
    switch(
        "retry-failed",
        "retry rows that failed for good, from their journal; ask a judge again where its verdict "
        "was unreadable",
    ),
)
_JUDGING = (
    FAILS._replace(
        help="fail a test if one of its rows failed for good (default)", action="store_true"
    ),
    Option("success-threshold", "fail evaluations that score below X", FINITE, None, "X"),
    Option(
        "se-threshold",
        "fail evaluations whose standard error, computed like eval-protocol's, exceeds X",
        POSITIVE,
        metavar="X",
    ),
    Option(
        "clustered-se-threshold",
        "fail evaluations whose standard error, clustered by task, exceeds X",
        POSITIVE,
        metavar="X",
    ),
)
_FILES = (
    options.JOURNAL._replace(
        help=f"record in this file (default: {JOURNAL} under pytest's rootdir)",
        default=None,
        metavar="FILE",
    ),
    Option(
        "summary",
        "write the whole session's scores as JSON to this file, or into this folder",
        _target,
        metavar="FILE",
    ),
    Option(
        "output-dir", "write the finished rows of each run as DIR/RUN.jsonl", _folder, None, "DIR"
    ),
    Option("report", "write each run as one HTML file into DIR", _folder, None, "DIR"),
    switch("view", "show the journal in a browser until the session ends"),
    options.OTEL,
    switch("print-summary", "print each evaluation's score as soon as it is known"),
)
