"""Defines and registers the agent loop.

A trajectory has a key of step, prompt and session. verl's uid of a prompt cannot be part of the
key, because verl gives a prompt a new uid whenever it issues the prompt, even after a resume. The
key contains the prompt itself and its number among equal prompts. A prompt that verl issues again
is replayed from the journal, not generated.
"""

import asyncio
import hashlib
import operator
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from holdfast.convert.checks import check_logprobs, check_temperature, listed
from holdfast.convert.selection import Branches, chosen, groups_of, single_branch
from holdfast.convert.verl import agent_loop_fields, to_agent_loop_output
from holdfast.delivery.stream import RolloutStream, plan_stream
from holdfast.engine.connect import Connection
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer
from holdfast.engine.settings import Settings
from holdfast.journal import check_address, open_journal
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.samples.sample import Sample
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks
from holdfast.verl.arguments import check_arguments
from holdfast.verl.policy import ServerPolicy, step_of

KEPT_STEPS = 8
"""The number of steps whose prompts may be sampled at the same time, in trainers that sample
ahead."""
Step = Callable[[Mapping[str, Any]], int]
"""A function that returns the global step of a prompt, given the arguments that verl passes to an
agent loop."""


@checks_arguments(own="scorer journal branches step")
def agent_loop(
    name: str,
    rollout: object,
    scorer: "PointScorer | GroupScorer | None" = None,
    *,
    journal: Path | str,
    run: str = "verl",
    branches: str = Branches.REFUSE,
    settings: Settings | None = None,
    step: Step | None = None,
) -> type[AgentLoopBase]:
    """Registers a rollout as verl's agent loop `name`, in this process.

    `step` is needed only for trainers that do not pass `global_steps` (verl's V1 trainer does). If
    there is no scorer and the rollout returns no reward, verl computes the reward. A scorer that
    returns None fails the trajectory.
    """
    check_address(journal)
    if step is not None and not callable(step):
        raise UsageError(f"step is a function of what verl gives an agent loop, not {step!r:.100}")
    rollouts = _Rollouts(
        name,
        rollout,
        scorer,
        journal=journal,
        run=run,
        branches=chosen(Branches, "branches", branches),
        settings=settings,
        step=step,
    )

    class HoldfastAgentLoop(AgentLoopBase):  # type: ignore[misc] # verl has no types.
        """Holdfast's rollouts over verl's servers."""

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            return await rollouts.run(self, sampling_params, kwargs)

    HoldfastAgentLoop.__qualname__ = HoldfastAgentLoop.__name__ = _class_name(name)
    globals()[HoldfastAgentLoop.__name__] = HoldfastAgentLoop  # verl finds the class by its name.
    registered: type[AgentLoopBase] = register(name)(HoldfastAgentLoop)
    return registered


def _class_name(name: str) -> str:
    return "HoldfastAgentLoop_" + "".join(c if c.isalnum() else "_" for c in name)


class _Rollouts:
    """The streams of one agent loop in this process: one for training, one for validation, and one
    for the greedy samples that verl takes beside the training samples (REMAX)."""

    def __init__(
        self,
        name: str,
        rollout: object,
        scorer: "PointScorer | GroupScorer | None",
        *,
        journal: Path | str,
        run: str,
        branches: Branches,
        settings: Settings | None,
        step: Step | None,
    ):
        self._loop_name = name
        self._rollout = rollout
        self._scorer = scorer
        self._journal = journal
        self._run = run
        self._branches = branches
        self._settings = settings
        self._step = step
        self._streams: dict[str, RolloutStream] = {}
        self._opening = asyncio.Lock()
        self._issued: dict[int, _IssuedPrompts] = {}
        """For each step, the prompts that verl issued."""

    async def run(
        self, loop: AgentLoopBase, params: dict[str, Any], kwargs: Mapping[str, Any]
    ) -> Any:
        sampling = _sampling(params, loop)
        name = self._run + _suffix(sampling, loop)
        stream = await self._stream(name, sampling, loop)
        task = self._task(kwargs)
        (group,) = await stream.roll_out(None, [task])
        samples = list(group.samples)
        if name == self._run:
            check_temperature(samples, sampling.temperature)
            check_logprobs(samples)
        if "session_id" not in kwargs and len(samples) > 1:
            (member,) = groups_of(samples)[0]
            samples = [single_branch(member, self._branches, trainer="verl")[0]]
        outputs = [_output(self._fields(sample), sample, loop.rollout_config) for sample in samples]
        return outputs if len(outputs) > 1 else outputs[0]

    def _fields(self, sample: Sample) -> dict[str, Any]:
        """Returns the fields of verl's output. The reward may be missing if there is no scorer;
        verl then computes it."""
        return agent_loop_fields(sample) if self._scorer is None else to_agent_loop_output(sample)

    async def _stream(self, name: str, sampling: Sampling, loop: AgentLoopBase) -> RolloutStream:
        async with self._opening:
            if name not in self._streams:
                self._streams[name] = await self._opened(name, sampling, loop)
            return self._streams[name]

    async def _opened(self, name: str, sampling: Sampling, loop: AgentLoopBase) -> RolloutStream:
        check_arguments(loop.config, name=self._loop_name, has_scorer=self._scorer is not None)
        renderer = renderer_for(_folder(loop.tokenizer, loop.config))
        renderer_at(renderer, sampling)  # Raises if it cannot render with these settings.
        plan = plan_stream(
            name,
            self._rollout,
            self._scorer,
            model=_training(loop.config),
            renderer=renderer.name,
            samples=1,
            sampling=sampling,
            # Each of verl's workers is a process that rolls out the same run.
            settings=structs.replace(self._settings or Settings(), join=True),
        )
        mode = LogprobsMode.PROCESSED
        if getattr(loop.rollout_config, "logprobs_mode", "processed_logprobs").startswith("raw"):
            mode = LogprobsMode.RAW
        policy = ServerPolicy(
            loop.server_manager,
            model="verl",
            logprobs_mode=mode,
            unique_ids=bool(getattr(loop.rollout_config, "full_determinism", False)),
        )

        @asynccontextmanager
        async def connected(
            journal: Journal, consumer: Consumer | None
        ) -> AsyncIterator[Connection]:
            yield Connection(policy, renderer)

        journal = partial(open_journal, self._journal)
        stream = RolloutStream(
            plan, connected, journal=journal, consumer=None, trained=name == self._run
        )
        await stream.open(None)
        return stream

    def _task(self, kwargs: Mapping[str, Any]) -> Task:
        """Returns the task of a prompt. Its name consists of the step, the prompt, its number among
        equal prompts and its session."""
        wants = "raw_prompt is a list of messages, each a dict with role and content"
        prompt: Any = kwargs.get("raw_prompt")
        dicts = listed(prompt, wants, lambda item: isinstance(item, Mapping))
        messages = [_plain(message) for message in dicts]
        columns = _columns(kwargs)
        step = self._step_of(kwargs)
        issued = self._issued_in(step)
        key = f"step-{step}-{_digest(messages, columns)}"
        uid = str(kwargs.get("uid", ""))
        key = f"{key}-{issued.place(key, uid)}"
        session = kwargs.get("session_id")
        if session is None:
            session = issued.next_session(f"{key} {uid}")
        number = _whole("session_id", session)
        (task,) = as_tasks([{**columns, "messages": messages, "id": f"{key}-{number}"}])
        return task

    def _issued_in(self, step: int) -> "_IssuedPrompts":
        """Returns the issued prompts of a step. Removes the prompts of steps that ended long
        ago."""
        for old in [known for known in self._issued if known < step - KEPT_STEPS]:
            del self._issued[old]
        return self._issued.setdefault(step, _IssuedPrompts())

    def _step_of(self, kwargs: Mapping[str, Any]) -> int:
        if self._step is not None:
            return _whole("what step= returns", self._step(kwargs))
        if "global_steps" not in kwargs:
            raise UsageError(
                "this trainer of verl does not say in which step a prompt is issued (global_steps; "
                "the V1 trainer does): a prompt of a later epoch could not be told from one that "
                "is issued again; give agent_loop(…, step=FUNCTION)"
            )
        return _whole("global_steps", kwargs["global_steps"])


class _IssuedPrompts:
    """The prompts of one step that this process was given."""

    def __init__(self) -> None:
        self._uids: dict[str, list[str]] = {}
        self._sessions: Counter[str] = Counter()

    def place(self, key: str, uid: str) -> int:
        """Returns the number of a prompt among equal prompts, which have different uids."""
        uids = self._uids.setdefault(key, [])
        if uid not in uids:
            uids.append(uid)
        return uids.index(uid)

    def next_session(self, key: str) -> int:
        """Returns the next session number of a prompt, for trainers in which verl passes none."""
        self._sessions[key] += 1
        return self._sessions[key] - 1


def _digest(messages: object, columns: Mapping[str, object]) -> str:
    """Returns a digest that identifies a prompt. Raises `UsageError` if the prompt cannot be
    written as JSON."""
    try:
        body = msgspec.json.encode([messages, columns], order="sorted")
    except (TypeError, ValueError) as error:
        name = next((name for name, value in columns.items() if not _is_json(value)), "raw_prompt")
        raise UsageError(
            f"{name} of a prompt cannot be recorded ({error}): verl's data set has it as a text, "
            "numbers, lists and dicts of them"
        ) from error
    return hashlib.sha256(body).hexdigest()[:16]


def _is_json(value: object) -> bool:
    try:
        msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError):
        return False
    return True


def _whole(name: str, value: object) -> int:
    """Returns a whole number as int, even if it comes from numpy or torch. Raises `UsageError` for
    any other value."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(f"{name} must be a whole number, not {value!r:.100}") from error


def _output(fields: dict[str, Any], sample: Sample, config: Any) -> AgentLoopOutput:
    """Cuts the response to verl's `response_length`, as verl's own agent loops do. A prompt that is
    too long raises `NotTrainable`. It is not cut, because the response was sampled after the whole
    prompt."""
    longest = getattr(config, "prompt_length", None)
    if longest is not None and len(fields["prompt_ids"]) > longest:
        raise NotTrainable(
            f"task {sample.task!r}: its prompt has {len(fields['prompt_ids'])} tokens, and verl "
            f"has room for {longest} (data.max_prompt_length): raise that, or let the data set "
            "leave out such prompts (data.filter_overlong_prompts)"
        )
    for name in ("response_ids", "response_mask", "response_logprobs"):
        fields[name] = fields[name][: config.response_length]
    steps = [step_of(span.version) for span in sample.version_spans]
    known = [step for step in steps if step is not None]
    extra = fields["extra_fields"]
    if known and len(known) == len(steps):
        extra["min_global_steps"], extra["max_global_steps"] = min(known), max(known)
    return AgentLoopOutput(metrics=AgentLoopMetrics(), **fields)


def _columns(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns that a scorer may read. The ground truth comes from `reward_model`, where
    verl's data sets keep it."""
    model = kwargs.get("reward_model")
    columns: dict[str, Any] = {}
    if isinstance(model, Mapping) and "ground_truth" in model:
        columns["ground_truth"] = _plain(model["ground_truth"])
    for name in ("data_source", "extra_info", "index"):
        if name in kwargs:
            columns[name] = _plain(kwargs[name])
    return columns


def _plain(value: Any) -> Any:
    """Converts numpy's numbers and arrays to Python's own."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def _sampling(params: Mapping[str, Any], loop: AgentLoopBase) -> Sampling:
    """Returns the sampling settings that verl wants for one prompt, and the arguments for the chat
    template."""
    return Sampling(
        max_tokens=loop.rollout_config.response_length,
        temperature=float(params.get("temperature", 1.0)),
        top_p=float(params.get("top_p", 1.0)),
        top_k=max(int(params.get("top_k", 0)), 0),
        repetition_penalty=float(params.get("repetition_penalty", 1.0)),
        chat_template_kwargs=_plain(getattr(loop, "apply_chat_template_kwargs", None) or {}) or "",
    )


def _suffix(sampling: Sampling, loop: AgentLoopBase) -> str:
    """Returns the suffix of the run for a prompt: "" for training. verl does not say whether a
    prompt is for training or validation, so the sampling settings of the prompt decide."""
    config = loop.rollout_config
    wanted = {name: getattr(config, name) for name in ("temperature", "top_p", "top_k")}
    if sampling == _sampling(wanted, loop):
        return ""
    validation = getattr(config, "val_kwargs", None)
    is_greedy = not sampling.temperature and sampling.top_p == 1.0 and not sampling.top_k
    if is_greedy and (validation is None or validation.temperature):
        return "-greedy"
    return "-val"


def _training(config: Any) -> str:
    """Returns the identity of a training. It is the folder of the training's checkpoints as written
    in the configuration, because verl does not say which weights its servers have."""
    return str((config.get("trainer") or {}).get("default_local_dir") or "verl")


def _folder(tokenizer: Any, config: Any) -> Path:
    """Returns a folder with the tokenizer, whose chat template renders the messages of the
    rollouts. If verl's `custom_chat_template` is used, saves the tokenizer first, because only the
    tokenizer in memory has this template."""
    model = (config.get("actor_rollout_ref") or {}).get("model") or {}
    named = Path(str(tokenizer.name_or_path))
    if named.is_dir() and not model.get("custom_chat_template"):
        return named
    folder = Path(tempfile.mkdtemp(prefix="holdfast-tokenizer-"))
    tokenizer.save_pretrained(folder)
    return folder
