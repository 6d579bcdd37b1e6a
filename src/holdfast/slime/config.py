"""Reads the settings of a run from slime's arguments.

Holdfast's own names are attributes of slime's arguments, set by `--custom-config-path` from a YAML
file:

- `holdfast_rollout`: FILE.py:NAME
- `holdfast_scorer`: a NAME in that file, or FILE.py:NAME; by default `score`, if the file has it
- `holdfast_journal` and `holdfast_run`
- `holdfast_policy`: addresses of engines; by default slime's own router
- `holdfast_renderer`: a family; by default it is detected
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.delivery.stream import plan_stream
from holdfast.engine.running.run_plan import RunPlan
from holdfast.journal import check_address, is_server
from holdfast.journal.types import MEMORY
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.declared import as_declared
from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.rollout.code.load import load_module, split
from holdfast.slime.arguments import check_arguments
from holdfast.tasks.read import read_tasks

_log = logging.getLogger("holdfast.slime")
_SLICED = re.compile(r"(?P<path>.*)@\[(?P<start>-?\d*):(?P<end>-?\d*)\]")
"""A part of a file in slime's notation: `file.jsonl@[0:50]`."""
POST_PROCESS = "holdfast.slime.post_process_rewards"


class SlimeConfig(Struct, frozen=True):
    """The arguments of slime that concern rollouts."""

    journal: str
    run: str
    urls: tuple[str, ...]
    model_folder: Path
    groups: int
    samples: int
    leaves_placeholders_out: bool
    """Whether Holdfast's `post_process_rewards` normalizes the rewards."""
    layers: int | None = None
    """The number of the model's layers if slime replays the experts of each token
    (--use-rollout-routing-replay), otherwise None."""
    checkpoints: str | None = None
    """The folder in which slime saves checkpoints. It identifies the training of a run, because
    slime does not say which weights its engines have."""


def config_of(args: Any) -> SlimeConfig:
    """Reads slime's arguments. Raises `UsageError`, before anything is sampled, for arguments with
    which the training would be wrong."""
    check_arguments(args)
    check_whole("--rollout-batch-size", args.rollout_batch_size, least=1)
    check_whole("--n-samples-per-prompt", args.n_samples_per_prompt, least=1)
    post_process = getattr(args, "custom_reward_post_process_path", None)
    # If the user converts samples, slime does not call a function for rewards.
    converts = getattr(args, "custom_convert_samples_to_train_data_path", None)
    return SlimeConfig(
        journal=_journal(args),
        run=str(getattr(args, "holdfast_run", None) or "slime"),
        urls=_urls(args),
        model_folder=Path(args.hf_checkpoint),
        groups=args.rollout_batch_size,
        samples=args.n_samples_per_prompt,
        leaves_placeholders_out=post_process == POST_PROCESS and not converts,
        layers=args.num_layers if _replays_routes(args) else None,
        checkpoints=getattr(args, "save", None) or None,
    )


def _journal(args: Any) -> str:
    """Returns the path of the journal. Raises `UsageError` if its folder does not exist, because
    this is usually a typo."""
    where = str(getattr(args, "holdfast_journal", None) or "holdfast.db")
    check_address(where)
    if where != MEMORY and not is_server(where) and not Path(where).absolute().parent.is_dir():
        raise UsageError(
            f"holdfast_journal: {where}: there is no folder {Path(where).parent}; make it, or "
            "correct the path"
        )
    return where


def _replays_routes(args: Any) -> bool:
    return bool(getattr(args, "use_rollout_routing_replay", False))


def _urls(args: Any) -> tuple[str, ...]:
    named = getattr(args, "holdfast_policy", None)
    if named:
        named = as_declared("holdfast_policy", named, str | Sequence[str])
        return (named,) if isinstance(named, str) else tuple(named)
    ip, port = getattr(args, "sglang_router_ip", None), getattr(args, "sglang_router_port", None)
    if not ip or not port:
        raise UsageError(
            "slime has no router yet, and no holdfast_policy is named: give the addresses of the "
            "engines in --custom-config-path"
        )
    return (f"http://{ip}:{port}",)


def plan_of(
    args: Any, name: str, sampling: Sampling, *, samples: int, model: str, renderer: str
) -> RunPlan:
    """Plans a run of the rollout and the scorer that the arguments name."""
    rollout, scorer = _code(args)
    return plan_stream(
        name,
        rollout,
        scorer,
        model=model,
        renderer=renderer,
        samples=samples,
        sampling=sampling,
        seed=args.rollout_seed,
    )


def training_sampling(args: Any) -> Sampling:
    return Sampling(
        max_tokens=args.rollout_max_response_len or Sampling().max_tokens,
        temperature=args.rollout_temperature,
        stop=tuple(getattr(args, "rollout_stop", None) or ()),
        stop_token_ids=tuple(getattr(args, "rollout_stop_token_ids", None) or ()),
        chat_template_kwargs=_template_kwargs(args),
        routed_experts=_replays_routes(args),
    )


def evaluation_sampling(args: Any, dataset: Any) -> Sampling:
    """Returns the sampling settings for one data set. slime has already filled in missing settings
    from `--eval-temperature` and similar arguments, or from the arguments of training."""
    training = training_sampling(args)
    return Sampling(
        max_tokens=dataset.max_response_len or training.max_tokens,
        temperature=training.temperature if dataset.temperature is None else dataset.temperature,
        top_p=1.0 if dataset.top_p is None else dataset.top_p,
        top_k=max(dataset.top_k or 0, 0),
        stop=training.stop if dataset.stop is None else tuple(dataset.stop),
        stop_token_ids=training.stop_token_ids
        if dataset.stop_token_ids is None
        else tuple(dataset.stop_token_ids),
        repetition_penalty=dataset.repetition_penalty or 1.0,
        chat_template_kwargs=_template_kwargs(dataset) or training.chat_template_kwargs,
    )


def _template_kwargs(holder: Any) -> Any:
    return getattr(holder, "apply_chat_template_kwargs", None) or ""


def _code(args: Any) -> tuple[Any, Any]:
    reference = getattr(args, "holdfast_rollout", None)
    if not reference:
        raise UsageError(
            "no rollout is named: give holdfast_rollout: FILE.py:NAME in --custom-config-path"
        )
    path, name = split(str(reference))
    module = load_module(path)
    rollout = getattr(module, name or "rollout", None)
    if rollout is None:
        raise UsageError(f"{path} has no {name or 'rollout'}: name it as {path}:NAME")
    chosen = getattr(args, "holdfast_scorer", None)
    if chosen is None:
        return rollout, getattr(module, "score", None)
    where, function = split(str(chosen)) if ".py" in str(chosen) else (path, str(chosen))
    scorer = getattr(load_module(where), function or "score", None)
    if scorer is None:
        raise UsageError(f"{where} has no scorer {function or 'score'}")
    return rollout, scorer


class TaskSource(Struct, frozen=True):
    """A data set of slime: its path, its columns, and the largest length of a prompt."""

    path: str
    input_key: str
    label_key: str | None
    max_prompt: int | None

    def tasks(self, renderer: Renderer, sampling: Sampling) -> list[Task]:
        """Reads the tasks. Leaves out prompts that are too long, as slime does."""
        columns = {"prompt": self.input_key}
        if self.label_key:
            columns["ground_truth"] = self.label_key
        known = {field: column for field, column in columns.items() if field != column}
        path, rows = _sliced(self.path)
        tasks = read_tasks(path, columns=known)[rows]
        writer = renderer_at(renderer, sampling)
        most = self.max_prompt
        kept = [
            task for task in tasks if most is None or len(writer.render(task.messages, ())) <= most
        ]
        if not kept:
            longer = f" with a prompt of at most {most} tokens" if tasks else ""
            raise UsageError(f"{self.path} has no tasks{longer}")
        if len(kept) < len(tasks):
            _log.warning(
                "%s: %d prompts are longer than %d tokens, and left out",
                *(self.path, len(tasks) - len(kept), most),
            )
        return kept


def training_data(args: Any) -> TaskSource:
    longest = getattr(args, "rollout_max_prompt_len", None)
    return TaskSource(args.prompt_data, args.input_key, _label_key(args), longest)


def evaluation_data(args: Any, dataset: Any) -> TaskSource:
    label = _label_key(dataset) or _label_key(args)
    longest = getattr(args, "eval_max_prompt_len", None)
    return TaskSource(dataset.path, dataset.input_key or args.input_key, label, longest)


def _label_key(holder: Any) -> str | None:
    return getattr(holder, "label_key", None) or None


def _sliced(path: str) -> tuple[str, slice]:
    if (match := _SLICED.fullmatch(path)) is None:
        return path, slice(None)
    start, end = (int(bound) if bound else None for bound in match.group("start", "end"))
    return match["path"], slice(start, end)
