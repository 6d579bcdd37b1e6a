"""Calling a decorated evaluation, with pytest or without."""

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
    """An evaluation as a callable: `evaluation(row)` judges, `evaluation.evaluate()` runs it."""

    def __init__(self, definition: Definition):
        self._definition = definition

    def __call__(self, *positional: object, **arguments: object) -> object:
        """Judges the given row or rows. Without any, runs the whole evaluation and raises if it
        fails."""
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

    def evaluate(self, **given: Any) -> "Outcome":
        """`evaluate_async` for code that is not async: the same arguments, the same outcome.

        Inside a running loop, as in a notebook, it has a thread and a loop of its own, and the
        caller waits; an interrupt stops it, and the same call goes on.
        """
        if is_in_loop():
            return run_blocking(lambda: self.evaluate_async(**given))
        with self._begun(**given) as experiment:
            return _run(experiment)

    async def evaluate_async(self, **given: Any) -> "Outcome":
        """Runs (or goes on with) the evaluation and returns its outcome; raises nothing for a
        score that is too low: `outcome.check()` does. Cancelling it loses nothing that is durable.
        """
        from holdfast.evaluation.running.experiment import perform_async

        with self._begun(**given) as experiment:
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
        """`variant` names one where there are several; `arguments` are what pytest would have
        filled in: fixtures, parameters, `self`; `options`, also as a dict, are the flags of the
        pytest plugin."""
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
    """The results of a function for many rows: a list that may also be awaited."""

    def __await__(self) -> Generator[None, None, "Judged"]:
        return self
        yield  # It never waits.


def _awaitable(returned: object) -> object:
    """`await test(row)` is how eval-protocol's tests are called, whatever the function is."""
    return Judged(returned) if isinstance(returned, list) else returned


@contextmanager
def _session(
    options: "Options | Mapping[str, object] | None", journal: str | None
) -> Iterator[EvaluationSession]:
    """What stops the block (`pytest.skip()`, say) is the user's, and goes to them as it is."""
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
    """A signal that stops it goes to the user as it is."""
    from holdfast.evaluation.running.experiment import perform
    from holdfast.evaluation.running.signals import Interrupted

    try:
        return perform(experiment)
    except Interrupted as error:
        raise KeyboardInterrupt(str(error)) from error


def _check_arguments(definition: Definition, arguments: Mapping[str, object]) -> None:
    """Before anything is rolled out, and not by each row that is judged."""
    kinds = {parameter.name: parameter.kind for parameter in definition.arguments}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        return
    for name in sorted(set(arguments) - set(kinds) - {"self"}):
        raise UsageError(f"arguments: {definition.name} takes no {name!r}")
