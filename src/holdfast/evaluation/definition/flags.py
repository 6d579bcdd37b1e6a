"""The words that pytest's command line gains.

Each is there as `--holdfast-…`, and as `--ep-…` where eval-protocol has it, unless its own plugin
is installed, too. Values that make no sense are refused here, by the name of their flag. Imports
nothing but what pytest has imported anyway: sessions without evaluations pay for this module.
"""

import json
import math
import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

PREFIX = "holdfast_"
"""Of the names under which pytest keeps the values."""


def register(parser: "pytest.Parser", *, with_theirs: bool | None = None) -> None:
    """Adds all flags; `with_theirs`: also those of eval-protocol."""
    if with_theirs is None:
        with_theirs = find_spec("eval_protocol") is None
    group = parser.getgroup("holdfast", "evaluations (holdfast)")
    for names, options in _flags():
        spelled = [name for name in names if with_theirs or not name.startswith("--ep-")]
        if spelled:
            group.addoption(*spelled, **options)


def _flags() -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    return [*_which(), *_how(), *_judging(), *_where()]


def _flag(
    name: str,
    *theirs: str,
    help: str,  # noqa: A002 - as pytest calls it
    **options: Any,
) -> tuple[tuple[str, ...], dict[str, Any]]:
    options.setdefault("dest", PREFIX + name.replace("-", "_"))
    options.setdefault("default", None)
    spelled = (f"--holdfast-{name}", *(f"--ep-{one}" for one in theirs))
    return spelled, {**options, "help": help}


def _which() -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    return [
        _flag(
            "max-rows",
            "max-rows",
            type=_rows,
            metavar="N|all",
            help="evaluate only the first N rows of each data set",
        ),
        _flag(
            "num-runs",
            "num-runs",
            type=_at_least(1),
            metavar="N",
            help="run each evaluation N times",
        ),
        _flag(
            "jsonl-path",
            "jsonl-path",
            type=_file,
            metavar="FILE",
            help="take the rows from this file instead of each evaluation's own",
        ),
        _flag(
            "completion-params",
            "completion-params",
            action="append",
            type=_object,
            metavar="JSON",
            help="use these completion params instead of each evaluation's own; again for more",
        ),
        _flag(
            "input-param",
            "input-param",
            action="append",
            type=_params,
            metavar="KEY=VALUE|@FILE",
            help="set one completion param in every setting; or, written with an = and without a "
            "space (pytest itself reads words that begin with @), those of a JSON file: "
            "--holdfast-input-param=@FILE",
        ),
        _flag(
            "reasoning-effort",
            "reasoning-effort",
            metavar="EFFORT",
            type=_word,
            help="how much the model is to think: low, medium, high, none",
        ),
        _flag(
            "no-op-rollout-processor",
            "no-op-rollout-processor",
            action="store_true",
            default=False,
            help="generate nothing: judge the rows as they are",
        ),
    ]


def _how() -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    return [
        _flag(
            "policy",
            action="append",
            metavar="URL",
            help="the inference engine; several times for several replicas",
        ),
        _flag(
            "max-concurrency",
            "max-concurrent-rollouts",
            type=_at_least(1),
            metavar="N",
            help="how many rollouts run at once",
        ),
        _flag(
            "max-concurrent-evaluations",
            "max-concurrent-evaluations",
            type=_at_least(1),
            metavar="N",
            help="how many rows are judged at once",
        ),
        _flag(
            "max-retry",
            "max-retry",
            type=_at_least(0),
            metavar="N",
            help="how often a failed rollout is tried again, from its journal; 0: never",
        ),
        _flag(
            "resume",
            action="store_true",
            default=False,
            help="go on with what is recorded, and fail where that is another run than asked for",
        ),
        _flag(
            "new",
            action="store_true",
            default=False,
            help="begin each evaluation anew, whatever is recorded",
        ),
        _flag(
            "retry-failed",
            action="store_true",
            default=False,
            help="give rows that failed for good new budgets; what is recorded is replayed",
        ),
    ]


def _judging() -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    permanent = PREFIX + "fail_on_permanent_failure"
    return [
        _flag(
            "fail-on-permanent-failure",
            dest=permanent,
            action="store_true",
            help="a row that failed for good fails its test (the default)",
        ),
        _flag(
            "no-fail-on-permanent-failure",
            dest=permanent,
            action="store_false",
            help="a row that failed for good is counted and shown, and fails nothing",
        ),
        (
            ("--ep-fail-on-permanent-failure", "--ep-fail-on-max-retry"),
            {
                "dest": permanent,
                "type": _truth,
                "default": None,
                "metavar": "true|false",
                "help": "whether a row that failed for good fails its test",
            },
        ),
        _flag(
            "success-threshold",
            "success-threshold",
            type=_number,
            metavar="X",
            help="the score that each evaluation has to reach",
        ),
        _flag(
            "se-threshold",
            "se-threshold",
            type=_positive,
            metavar="X",
            help="the standard error, as eval-protocol has it, that a score may have at most",
        ),
        _flag(
            "clustered-se-threshold",
            type=_positive,
            metavar="X",
            help="the standard error, clustered by task, that a score may have at most",
        ),
    ]


def _where() -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    return [
        _flag(
            "journal",
            metavar="FILE",
            help="where everything is kept (.holdfast/evaluations.db under pytest's rootdir)",
        ),
        _flag(
            "summary",
            "summary-json",
            type=_target,
            metavar="FILE",
            help="write the whole session's scores as JSON to FILE (or into a folder)",
        ),
        _flag(
            "output-dir",
            "output-dir",
            type=_folder,
            metavar="DIR",
            help="write the finished rows of each run as DIR/RUN.jsonl",
        ),
        _flag(
            "report",
            type=_folder,
            metavar="DIR",
            help="write each run as one HTML file into DIR",
        ),
        _flag(
            "print-summary",
            "print-summary",
            action="store_true",
            default=False,
            help="tell each evaluation's score as soon as it is known",
        ),
        (
            ("--ep-no-upload",),
            {
                "action": "store_true",
                "dest": PREFIX + "no_upload",
                "default": False,
                "help": "accepted: nothing is ever uploaded",
            },
        ),
    ]


# --- values


def _at_least(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise ArgumentTypeError(f"wants a whole number of {least} or more, not {text!r}")
        return found

    return whole


def _rows(text: str) -> int:
    """-1 stands for all."""
    return -1 if text.strip().lower() == "all" else _at_least(0)(text)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ArgumentTypeError(f"wants a number, not {text!r}")
    return found


def _positive(text: str) -> float:
    if (found := _number(text)) < 0:
        raise ArgumentTypeError(f"wants a number of 0 or more, not {text!r}")
    return found


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
    """Told before hours of rollouts, not after them. Nothing is made yet."""
    path = Path(text).absolute()
    near = next(one for one in (path, *path.parents) if one.exists())
    if not near.is_dir():
        raise ArgumentTypeError(f"{str(near)!r} is no folder")
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
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"wants a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"wants a JSON object, not {text!r}")
    return found


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
