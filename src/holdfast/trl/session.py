"""The parts that both of TRL's trainers need: a user's options, and one training with its run and
engines."""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.delivery.stream import RolloutStream, plan_stream
from holdfast.delivery.thread import LoopThread
from holdfast.delivery.weights import ModelWeights, name_weights
from holdfast.engine.arguments import engine_urls
from holdfast.engine.connect import Connection, EngineAddress
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer
from holdfast.engine.settings import Settings
from holdfast.journal import open_journal
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling
from holdfast.rollout.processors.processor import as_processor
from holdfast.training.run.folder import ENGINE_LOG, WEIGHTS
from holdfast.training.run.loop import ServedWeights
from holdfast.training.run.serving import TrainingEngines
from holdfast.training.run.weights import WeightFolder, remove_old
from holdfast.training.settings import TrainingSettings
from holdfast.trl.arguments import check_arguments
from holdfast.trl.rows import sampling_of
from holdfast.weights.records import JournalRecords


class TrlOptions(Struct, frozen=True, kw_only=True):
    """The user's options for the rollouts. Wrong options raise `UsageError`. Creating this object
    opens nothing."""

    rollout: object
    scorer: PointScorer | GroupScorer | None
    journal: Path | str
    run: str
    policy: str | Sequence[str]
    api_key: str | None
    sampling: Sampling | None
    group: GroupPolicy | None
    settings: Settings | None
    out: Path | str | None
    log_requests: bool
    report: Callable[[str], None]

    def __post_init__(self) -> None:
        if not isinstance(self.journal, Path | str):
            raise UsageError(f"journal is the path of a file, not {self.journal!r:.100}")
        if self.scorer is not None and not callable(self.scorer):
            raise UsageError(f"scorer is a function of one argument, not {self.scorer!r:.100}")
        as_processor(self.rollout)
        _ = self.address

    @property
    def address(self) -> EngineAddress:
        is_embedded = isinstance(self.policy, list | tuple) and not self.policy
        urls = () if is_embedded else engine_urls(self.policy)
        return EngineAddress(urls=urls, api_key=self.api_key, is_trained=True)


class TrlSession:
    """One training, from its first rollout to its end. Engines get their first version of the
    weights when rollouts begin, and each later version as soon as it exists."""

    def __init__(
        self,
        options: TrlOptions,
        args: Any,
        *,
        training: str,
        samples: int,
        model: Any,
        tokenizer: Any,
    ):
        """`training` is the identity of the training in its run. `args` are TRL's training
        arguments."""
        check_arguments(args)
        self._options = options
        self._args = args
        self._training = training
        self._tokenizer = tokenizer
        out = Path(options.out or Path(args.output_dir) / "holdfast")
        folder = _write_tokenizer(tokenizer, model, out)
        self._renderer = renderer_for(folder)
        self._weights = out / WEIGHTS
        self._stream = self._new_stream(options.run, samples)
        self._engines = TrainingEngines(
            self._stream.plan,
            TrainingSettings(log_requests=options.log_requests),
            model=folder,
            renderer=self._renderer,
            address=options.address,
            log=out / ENGINE_LOG,
            report=options.report,
        )
        self._version: WeightFolder | None = None
        self._served: ServedWeights | None = None
        self._thread = LoopThread("holdfast rollouts")

    def _begin(self, opening: Coroutine[Any, Any, None]) -> None:
        try:
            self._thread.call(opening)
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        """Stops the engine and gives the leases back. A second call does nothing."""
        if self._thread.is_running:
            self._thread.close(self._close())

    async def _close(self) -> None:
        await self._stream.close()

    def _new_stream(self, name: str, samples: int) -> RolloutStream:
        """Plans the run that TRL's arguments ask for. Raises `UsageError` if no trajectory will
        have a reward."""
        options = self._options
        plan = plan_stream(
            name,
            options.rollout,
            options.scorer,
            model=self._training,
            renderer=self._renderer.name,
            samples=samples,
            sampling=sampling_of(self._args, options.sampling),
            seed=self._args.seed,
            group=options.group,
            settings=options.settings,
        )
        plan.check_rewarded()
        # Raises if it cannot render with these settings.
        renderer_at(self._renderer, plan.spec.sampling)
        journal = partial(open_journal, options.journal)
        return RolloutStream(plan, self._connect, journal=journal, consumer="trainer")

    # --- the weights

    async def _name(self, weights: ModelWeights, step: int) -> WeightFolder:
        """Writes the weights after `step` as a folder under a durable name."""
        return await name_weights(
            weights,
            self._tokenizer,
            journal=self._stream.journal,
            consumer=self._stream.consumer,
            step=step,
            parent=self._weights,
        )

    async def _publish(self, version: WeightFolder) -> None:
        """Gives the engines a version. On return, calls that begin later are sampled with it.
        Removes the files of older versions."""
        before = self._version
        if before is not None and version.digest == before.digest:
            return
        self._version = version
        keep = {version.name, *([before.name] if before else [])}
        if self._served is not None:
            await self._served.publish(version)
            keep |= self._served.sync.in_use()
        remove_old(self._weights, sorted(keep))

    @asynccontextmanager
    async def _connect(
        self, journal: Journal, consumer: Consumer | None
    ) -> AsyncIterator[Connection]:
        """Connects to the policy that samples with the newest version. An evaluation shares the
        connection."""
        if self._served is not None:
            yield self._served.connection
            return
        assert self._version is not None, "weights have a name before they are served"
        records = JournalRecords(journal, self._stream.run, consumer=consumer)
        async with self._engines.serve(self._version, records) as self._served:
            try:
                yield self._served.connection
            finally:
                self._served = None


def _write_tokenizer(tokenizer: Any, model: Any, out: Path) -> Path:
    """Writes the trainer's tokenizer into a folder. Its chat template renders the messages of the
    rollouts."""
    folder = out / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)
    return folder
