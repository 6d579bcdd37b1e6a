"""Calls a decorated evaluation, with pytest or without."""

import inspect
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from holdfast.evaluation.definition.definition import Definition, Variant, variants_of
from holdfast.evaluation.definition.options import Options
from holdfast.evaluation.eval_protocol.class_checks import import_models
from holdfast.evaluation.running.session import EvaluationSession
from holdfast.records.encoding.declared import struct_from
from holdfast.records.errors import ScoringStopped, UsageError
from holdfast.rollout.threads.blocking import is_in_loop, run_blocking

if TYPE_CHECKING:
    from holdfast.evaluation.running.experiment import Experiment
    from holdfast.evaluation.stats.outcome import Outcome
    from holdfast.policy.policy import Policy
    from holdfast.policy.rendering.renderer import Renderer


class Evaluation:
    """An evaluation as a callable. `evaluation(row)` judges a row, and `evaluation.evaluate()` runs
    the whole evaluation."""

    def __init__(self, definition: Definition):
        self._definition = definition

    def __call__(self, *positional: object, **arguments: object) -> object:
        """Judges the given row or rows. Without rows, runs the whole evaluation, and raises an
        error if the evaluation fails."""
        function, rows = self._definition.function, self._definition.mode.argument
        import_models(function)
        if rows in arguments:
            return _awaitable(function(*positional, **arguments))
        names = [argument.name for argument in self._definition.arguments]
        is_method = names[:1] == ["self"]
        if len(positional) == (2 if is_method else 1):
            return _awaitable(function(*positional[:-1], **{rows: positional[-1]}, **arguments))
        named = dict(zip(names, positional, strict=False)) | arguments
        with _session(None, None) as session:
            for variant in variants_of(self._definition):
                _run(self._experiment(session, variant, named)).check()
        return None

    def evaluate(self, **options: Any) -> "Outcome":
        """Runs `evaluate_async` for code that is not async, with the same arguments and the same
        outcome.

        Inside a running loop, as in a notebook, it runs in its own thread and loop while the caller
        waits. An interrupt stops it, and the same call continues the run later.
        """
        if is_in_loop():
            return run_blocking(lambda: self.evaluate_async(**options))
        with self._begun(**options) as experiment:
            return _run(experiment)

    async def evaluate_async(self, **options: Any) -> "Outcome":
        """Runs or continues the evaluation and returns its outcome. A score that is too low does
        not raise; call `outcome.check()` for that. Cancelling it loses no durable record."""
        from holdfast.evaluation.running.experiment import perform_async

        with self._begun(**options) as experiment:
            outcome = await perform_async(experiment)
            assert outcome is not None, "nobody asks it to stop"
            return outcome

    @contextmanager
    def _begun(
        self,
        *,
        policy: "Policy | str | Sequence[str] | None" = None,
        journal: str | None = None,
        variant: str | None = None,
        arguments: Mapping[str, object] | None = None,
        renderer: "Renderer | None" = None,
        options: "Options | Mapping[str, object] | None" = None,
    ) -> Iterator["Experiment"]:
        """Yields the experiment to run. `variant` names one of several variants. `arguments` are
        the values that pytest would fill in: fixtures, parameters, `self`. `options` are the flags
        of the pytest plugin, as `Options` or a dict."""
        with _session(options, journal) as session:
            experiment = self._choose(session, variant, arguments or {})
            chosen = experiment.policy if policy is None else policy
            yield structs.replace(experiment, policy=chosen, renderer=renderer)

    def _choose(
        self, session: EvaluationSession, name: str | None, arguments: Mapping[str, object]
    ) -> "Experiment":
        variants = variants_of(self._definition, session.options)
        ids = [variant_.id for variant_ in variants]
        if name is None and len(variants) > 1:
            raise UsageError(
                f"{self._definition.name} has {len(variants)} variants; name one with variant=: "
                f"{', '.join(ids)}"
            )
        if name is not None and name not in ids:
            has = f"it has {', '.join(ids)}" if len(ids) > 1 else "it has but one: leave it out"
            raise UsageError(f"{self._definition.name} has no variant {name!r}; {has}")
        chosen = variants[0 if name is None else ids.index(name)]
        return self._experiment(session, chosen, arguments)

    def _experiment(
        self, session: EvaluationSession, variant: Variant, arguments: Mapping[str, object]
    ) -> "Experiment":
        from holdfast.evaluation.running.experiment import Experiment
        from holdfast.evaluation.running.resume import run_name

        missing = [
            parameter.name
            for parameter in self._definition.arguments
            if parameter.default is inspect.Parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and parameter.name not in arguments
        ]
        if missing:
            raise UsageError(
                f"{self._definition.name} also takes {', '.join(missing)}, which pytest fills in; "
                "without it, give arguments={…}"
            )
        _check_arguments(self._definition, arguments)
        module, _, function = self._definition.name.rpartition(".")
        return Experiment(
            definition=self._definition,
            variant=variant,
            name=run_name(module, function, variant.id),
            session=session,
            arguments=arguments,
            parameters=arguments,
            policy=self._definition.policy,
        )


_SIGNATURE = inspect.signature(Evaluation._begun)  # noqa: SLF001
for _method in (Evaluation.evaluate, Evaluation.evaluate_async):
    _method.__signature__ = _SIGNATURE  # type: ignore[union-attr]  # For editors.


class Judged(list[object]):
    """The results of a function for many rows, as a list that can also be awaited."""

    def __await__(self) -> Generator[None, None, "Judged"]:
        return self
        yield  # It never waits.


def _awaitable(returned: object) -> object:
    """Returns a list in a form that can also be awaited, and any other value unchanged.
    eval-protocol's tests are called as `await test(row)` even if the function is not async."""
    return Judged(returned) if isinstance(returned, list) else returned


@contextmanager
def _session(
    options: "Options | Mapping[str, object] | None", journal: str | None
) -> Iterator[EvaluationSession]:
    """Opens a session. An exception that stops the block, such as the exception of `pytest.skip()`,
    is raised unchanged."""
    if isinstance(options, Mapping):
        options = struct_from(options, Options, "options")
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise UsageError(f"options wants an Options(…) or a dict, not {options!r:.100}")
    if journal is not None:
        options = structs.replace(options, journal=str(journal))
    session = EvaluationSession(options)
    try:
        yield session
    except ScoringStopped as error:
        raise error.raised from None
    finally:
        session.close()


def _run(experiment: "Experiment") -> "Outcome":
    """Runs the experiment. A signal that stops it is raised as `KeyboardInterrupt`."""
    from holdfast.evaluation.running.experiment import perform
    from holdfast.evaluation.running.signals import Interrupted

    try:
        return perform(experiment)
    except Interrupted as error:
        raise KeyboardInterrupt(str(error)) from error


def _check_arguments(definition: Definition, arguments: Mapping[str, object]) -> None:
    """Raises `UsageError` for unknown arguments before anything is rolled out, not once for each
    row."""
    kinds = {parameter.name: parameter.kind for parameter in definition.arguments}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        return
    for name in sorted(set(arguments) - set(kinds) - {"self"}):
        raise UsageError(f"arguments: {definition.name} takes no {name!r}")
