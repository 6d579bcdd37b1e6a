"""The pytest plugin: flags, one item for each experiment, and the summary at the end of the
session.

Evaluations are found by the mark that the decorator leaves. A session without evaluations imports
only this module. Under pytest-xdist each item runs in one worker, the workers share the journal,
and their outcomes travel in pytest's own reports.
"""

import json
import os
import secrets
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.evaluation.definition import flags

if TYPE_CHECKING:
    from holdfast.evaluation.definition.definition import Definition, Variant
    from holdfast.evaluation.definition.options import Options
    from holdfast.evaluation.running.session import EvaluationSession
    from holdfast.evaluation.stats.outcome import Outcome

MARK = "__holdfast__"
PARAMETER = "holdfast_variant"
SETTING = "completion_params"
"""A pytest parameter with this name is a setting, as in eval-protocol's own tests."""
ATTACHED = "holdfast_outcome"
"""The attribute of a report that holds an outcome, as JSON, which can be sent by a worker."""

_session: "pytest.StashKey[EvaluationSession]" = pytest.StashKey()
_options: "pytest.StashKey[Options]" = pytest.StashKey()
_outcome: pytest.StashKey[str] = pytest.StashKey()
_interrupted: pytest.StashKey[str] = pytest.StashKey()
_taken_over: pytest.StashKey[set[str]] = pytest.StashKey()
_wrong_flags: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    flags.register(parser)


# --- collection


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Adds the parameter `completion_params` to an evaluation that pytest itself parametrizes by
    it."""
    definition = getattr(obj, MARK, None)
    marks = [mark for mark in getattr(obj, "pytestmark", []) if mark.name == "parametrize"]
    if definition is None or not any(map(_names_setting, marks)):
        return
    import inspect

    signature = inspect.signature(obj)  # type: ignore[arg-type]
    if SETTING not in signature.parameters:
        setting = inspect.Parameter(SETTING, inspect.Parameter.KEYWORD_ONLY)
        parameters = [*signature.parameters.values(), setting]
        obj.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]


def _names_setting(mark: pytest.Mark) -> bool:
    names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
    return SETTING in (names.replace(" ", "").split(",") if isinstance(names, str) else names)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    definition: Definition | None = getattr(metafunc.function, MARK, None)
    if definition is None:
        return
    from holdfast.evaluation.definition.definition import variants_of
    from holdfast.evaluation.definition.validate import naming
    from holdfast.records.errors import UsageError

    try:
        with naming(definition.function):
            variants = variants_of(definition, _options_of(metafunc.config))
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error
    if len(variants) > 1:
        metafunc.fixturenames.append(PARAMETER)
        metafunc.parametrize(PARAMETER, variants, ids=[variant.id for variant in variants])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Shows a mistake in a decorator as one line, because frames of Holdfast would not help the
    user."""
    report: pytest.CollectReport = yield  # type: ignore[assignment]
    call: pytest.CallInfo[object] | None = getattr(report, "call", None)
    errors = sys.modules.get("holdfast.records.errors")
    if report.failed and call is not None and call.excinfo is not None and errors is not None:
        error = call.excinfo.value
        if isinstance(error, errors.UsageError):
            report.longrepr = _with_place(error, collector)
    return report  # type: ignore[return-value]


def _with_place(error: BaseException, collector: pytest.Collector) -> str:
    """Returns the error, preceded by the last line of the collected file that led to it. If the
    error already names the file, it is returned unchanged."""
    lines = [
        number
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == str(collector.path)
    ]
    file = collector.path.name
    if not lines or str(error).startswith(f"{file}::"):
        return str(error)
    return f"{file}:{lines[-1]}: {error}"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Reads the code of all evaluations, because all modules are imported now, and no test has
    run."""
    for item in session.items:
        definition: Definition | None = getattr(getattr(item, "obj", None), MARK, None)
        if definition is not None:
            definition.read_code()


# --- running


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    definition: Definition | None = getattr(pyfuncitem.obj, MARK, None)
    if definition is None:
        return None
    from holdfast.evaluation.running.signals import Interrupted
    from holdfast.records.errors import ScoringStopped
    from holdfast.records.foreign import readable

    try:
        outcome = _perform(pyfuncitem, definition)
    except ScoringStopped as error:
        raise error.raised from None
    except Interrupted as error:
        pyfuncitem.config.stash[_interrupted] = str(error)
        if error.signal.name == "SIGINT":
            raise KeyboardInterrupt(str(error)) from None
        pytest.exit(str(error))
    except Exception as error:
        shown = readable(error)  # pytest reads all parts of the error.
        shown.__traceback__ = _user_code_of(shown) or shown.__traceback__
        if shown is error:
            raise
        raise shown from None
    _attach(pyfuncitem, outcome)
    outcome.check()
    return True


def _user_code_of(error: BaseException) -> types.TracebackType | None:
    """Returns the traceback that begins at the first frame of user code. Returns None if there is
    no such frame."""
    from holdfast.records.failure import is_user_code

    begins = error.__traceback__
    while begins is not None and not is_user_code(begins.tb_frame.f_code.co_filename):
        begins = begins.tb_next
    return begins


def _perform(item: pytest.Function, definition: "Definition") -> "Outcome":
    from holdfast.engine.guards.event_loop import fewer_collections
    from holdfast.evaluation.running.experiment import Experiment, perform
    from holdfast.evaluation.running.resume import run_name

    session = _session_of(item.config)
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}  # noqa: SLF001
    variant = _variant(item, definition, arguments)
    if (instance := getattr(item.obj, "__self__", None)) is not None:
        arguments["self"] = instance
    _, _, inside = item.name.partition("[")
    parameters = {k: v for k, v in _params(item).items() if k not in (PARAMETER, SETTING)}
    experiment = Experiment(
        definition=definition,
        variant=variant,
        name=run_name(item.module.__name__, _function(item), inside.removesuffix("]")),
        session=session,
        arguments=arguments,
        parameters=parameters if instance is None else {**parameters, "self": instance},
        policy=definition.policy,
    )
    with fewer_collections():  # During its session, the process belongs to pytest.
        return perform(experiment)


def _function(item: pytest.Function) -> str:
    """Returns the class and the name under which pytest runs the item. One function may run as
    several tests, through subclasses or other names."""
    name = item.originalname
    return name if item.cls is None else f"{item.cls.__qualname__}.{name}"


def _params(item: pytest.Function) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _variant(
    item: pytest.Function, definition: "Definition", arguments: dict[str, Any]
) -> "Variant":
    from holdfast.evaluation.definition.definition import variants_of, with_setting

    options = _options_of(item.config)
    params = _params(item)
    variant: Variant = params.get(PARAMETER) or variants_of(definition, options)[0]
    if SETTING in params and not definition.completion_params:
        setting = params[SETTING]
        if SETTING not in {parameter.name for parameter in definition.arguments}:
            arguments.pop(SETTING, None)
        return with_setting(variant, setting, options)
    return variant


def _options_of(config: pytest.Config) -> "Options":
    if _options not in config.stash:
        from holdfast.evaluation.definition.options import options_of
        from holdfast.records.errors import UsageError

        for wrong in config.stash[_wrong_flags]:
            raise UsageError(wrong)
        config.stash[_options] = options_of(vars(config.option))
    return config.stash[_options]


def _session_of(config: pytest.Config) -> "EvaluationSession":
    if _session not in config.stash:
        from holdfast.evaluation.running.session import EvaluationSession

        session = EvaluationSession(
            _options_of(config), root=_root_of(config), notify=_notifier(config)
        )
        if session.options.otel is not None:
            with _uncaptured(config):  # The process beside this one prints what could not be sent.
                session.trace(session.options.otel)
        config.stash[_session] = session
    return config.stash[_session]


def _root_of(config: pytest.Config) -> Path:
    """Returns pytest's rootdir. Without an ini-file, the result depends only on the paths of the
    tests.

    Without an ini-file, pytest itself also uses other arguments that look like a path, such as a
    flag's value. With `--holdfast-price FILE`, for example, pytest's own rootdir could change, and
    with it the journal's folder.
    """
    if config.inipath is not None or config.getoption("rootdir", None):
        return config.rootpath
    here = config.invocation_params.dir
    named = [here / each.partition("::")[0] for each in config.args]
    folders = [path if path.is_dir() else path.parent for path in named if path.exists()]
    together = Path(os.path.commonpath(folders or [here]))
    for folder in (together, *together.parents):
        if (folder / "setup.py").is_file():
            return folder
    root = Path(os.path.commonpath([here, together]))
    return together if root == root.parent else root


def _notifier(config: pytest.Config) -> Callable[[str], None]:
    """Returns a function that prints progress while a test runs, although pytest captures
    output."""
    begin = "\n" if config.pluginmanager.hasplugin("capturemanager") else ""

    def notify(message: str) -> None:
        from holdfast.engine.report import escape_lines

        with _uncaptured(config):
            print(f"{begin}holdfast: {escape_lines(message)}", file=sys.stderr, flush=True)  # noqa: T201

    return notify


def _uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    capture = config.pluginmanager.getplugin("capturemanager")
    return nullcontext() if capture is None else capture.global_and_fixture_disabled()


# --- reporting


def _attach(item: pytest.Function, outcome: "Outcome") -> None:
    properties: dict[str, object] = {}
    for part in outcome.parts:
        # With several runs, each has its own score, under its name. No score stands for all of
        # them.
        of = "" if len(outcome.parts) == 1 else f":{part.results.run}"
        verdict = part.verdict
        properties |= {
            f"score{of}": verdict.score,
            f"standard_error{of}": verdict.standard_error,
            f"ci{of}": None if verdict.interval is None else list(verdict.interval),
            f"rows{of}": verdict.rows,
            f"failed{of}": verdict.failed,
        }
    properties["run"] = ",".join(part.results.run for part in outcome.parts)
    properties["journal"] = outcome.journal
    item.user_properties += [
        (name, value) for name, value in properties.items() if value is not None
    ]
    item.stash[_outcome] = json.dumps(
        {
            "test": item.nodeid,
            "passed": outcome.passed,
            "notes": outcome.notes,
            "texts": [part.text for part in outcome.parts],
            "runs": [part.summary for part in outcome.parts],
            "pages": outcome.pages,
            "tables": outcome.tables,
        }
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if call.when == "call" and getattr(getattr(item, "obj", None), MARK, None) is not None:
        if _outcome in item.stash:
            setattr(report, ATTACHED, item.stash[_outcome])
        from holdfast.engine.report import escape_lines
        from holdfast.evaluation.stats.outcome import EvaluationFailed
        from holdfast.records.errors import HoldfastError

        value = call.excinfo.value if call.excinfo else None
        if isinstance(value, EvaluationFailed | HoldfastError):
            # The message says everything. A traceback through Holdfast would not help.
            name = "" if isinstance(value, EvaluationFailed) else f"{type(value).__name__}: "
            report.longrepr = escape_lines(f"{name}{value}")
    return report  # type: ignore[return-value]


class _Collector:
    """Gathers the outcomes in pytest's reports, in the process that writes to the terminal."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self.outcomes: list[dict[str, Any]] = []
        self._summary = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        attached = getattr(report, ATTACHED, None)
        if attached is None:
            return
        outcome = json.loads(attached)
        self.outcomes.append(outcome)
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self._config.getoption(flags.PREFIX + "print_summary"):
            reporter.write_line("")
            for text in outcome["texts"]:
                reporter.write_line(f"holdfast: {text.splitlines()[0]}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.outcomes:
            terminalreporter.section("evaluations")
            for outcome in self.outcomes:
                lines = outcome["notes"]
                for text, table in zip(outcome["texts"], outcome["tables"], strict=True):
                    # Failures are shown in full in their own section.
                    shown_lines = text.splitlines()[: None if outcome["passed"] else 2]
                    lines = [*lines, *shown_lines, *table]
                for line in [*lines, *outcome["pages"]]:
                    terminalreporter.write_line(line)
        for line in self._written():
            terminalreporter.write_line(line)
        if interrupted := self._config.stash.get(_interrupted, ""):
            terminalreporter.section("evaluation interrupted")
            terminalreporter.write_line(interrupted)

    def _written(self) -> list[str]:
        """Returns lines that say where the requested files are."""
        places = [
            (what, self._config.getoption(flags.PREFIX + flag))
            for what, flag in (("pages", "report"), ("rows", "output_dir"))
        ]
        lines = [f"{what} are in {place}" for what, place in places if place and self.outcomes]
        return [*lines, *([self._summary] if self._summary else [])]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        place = self._config.getoption(flags.PREFIX + "summary")
        # If no evaluation is Holdfast's, the file that eval-protocol's flag names is
        # eval-protocol's.
        is_theirs = "summary" in self._config.stash[_taken_over] and not self.outcomes
        if not place or is_theirs:
            return
        path = _file(place)
        try:
            _write_summary(path, self.outcomes)
            self._summary = f"the summary is in {path}"
        except OSError as error:
            # A session of hours must not end with a traceback because of this, but it ends with an
            # error.
            self._summary = f"--holdfast-summary {path} cannot be written: {error.strerror}"
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def _file(place: str) -> Path:
    path = Path(place)
    return path / "evaluations.json" if path.is_dir() or place.endswith("/") else path


def _write_summary(path: Path, outcomes: list[dict[str, Any]]) -> None:
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    summary = {
        "evaluations": [
            {key: outcome[key] for key in ("test", "passed", "notes", "runs", "pages")}
            for outcome in sorted(outcomes, key=lambda outcome: str(outcome["test"]))
        ]
    }
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # The path may be a pipe.
        return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)  # The file is whole, or unchanged.


def pytest_configure(config: pytest.Config) -> None:
    arguments = [str(word) for word in config.invocation_params.args]
    # The first evaluation of Holdfast raises the error, because other tests may need such a flag.
    config.stash[_taken_over], config.stash[_wrong_flags] = flags.take_over(
        vars(config.option), arguments
    )
    if config.getoption(flags.PREFIX + "resume") and config.getoption(flags.PREFIX + "new"):
        raise pytest.UsageError("--holdfast-resume and --holdfast-new exclude each other")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(config), "holdfast-evaluations")
        if config.getoption(flags.PREFIX + "view"):
            config.add_cleanup(_show(config))
        if (url := config.getoption(flags.PREFIX + "otel")) is not None:
            _check_collector(url)


def _show(config: pytest.Config) -> Callable[[], None]:
    """Shows the journal in a browser. Returns a function that stops the viewer."""
    from contextlib import ExitStack

    from holdfast.beside import view_beside
    from holdfast.records.errors import UsageError

    stack = ExitStack()
    try:
        stack.enter_context(view_beside(_session_of(config).journal(), option="--holdfast-view"))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    return stack.close


def _check_collector(url: str) -> None:
    from holdfast.beside import check_collector
    from holdfast.records.errors import UsageError

    try:
        check_collector(url, option="--holdfast-otel")
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_unconfigure(config: pytest.Config) -> None:
    if _session in config.stash:
        config.stash[_session].close()
