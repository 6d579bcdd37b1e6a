"""What the arguments of slime say about a run.

Names of ours are attributes of slime's arguments, which `--custom-config-path` sets from a YAML
file: `holdfast_rollout` (FILE.py:NAME), `holdfast_scorer` (a NAME in that file, or FILE.py:NAME;
`score` where there is one), `holdfast_journal`, `holdfast_run`, `holdfast_policy` (addresses, where
it is not slime's own router), `holdfast_renderer` (a family, where it is not found out).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.delivery.stream import plan_stream
from holdfast.engine.running.run_plan import RunPlan
from holdfast.journal import check_address, is_server
from holdfast.journal.journal import MEMORY
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.declared import as_declared
from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.rollout.code.load import load_module, split
from holdfast.tasks.read import read_tasks

POST_PROCESS = "holdfast.slime.post_process_rewards"


class SlimeConfig(Struct, frozen=True):
    """What of slime's arguments concerns rollouts."""

    journal: str
    run: str
    urls: tuple[str, ...]
    model_folder: Path
    groups: int
    samples: int
    leaves_placeholders_out: bool
    """Whether slime's rewards are normalized by ours."""
    layers: int | None = None
    """Of the model, where slime replays the routes of experts (--use-rollout-routing-replay)."""
    checkpoints: str | None = None
    """Where slime saves them. A run belongs to the training with this folder: slime does not say
    which weights its engines have."""


def config_of(args: Any) -> SlimeConfig:
    """Raises `UsageError` for what would be trained wrongly, before anything is sampled."""
    if not getattr(args, "rollout_global_dataset", True):
        raise UsageError(
            "with --disable-rollout-global-dataset slime never calls save and load of its data "
            "source, so that nothing would ever be committed: leave it out"
        )
    if getattr(args, "partial_rollout", False):
        raise UsageError(
            "--partial-rollout puts unfinished samples back as prompts; with Holdfast, unfinished "
            "rollouts go on from the journal by themselves: leave it out"
        )
    check_whole("--rollout-batch-size", args.rollout_batch_size, least=1)
    check_whole("--n-samples-per-prompt", args.n_samples_per_prompt, least=1)
    own = getattr(args, "custom_reward_post_process_path", None)
    return SlimeConfig(
        journal=_journal(args),
        run=str(getattr(args, "holdfast_run", None) or "slime"),
        urls=_urls(args),
        model_folder=Path(args.hf_checkpoint),
        groups=args.rollout_batch_size,
        samples=args.n_samples_per_prompt,
        leaves_placeholders_out=own == POST_PROCESS,
        layers=args.num_layers if _replays_routes(args) else None,
        checkpoints=getattr(args, "save", None) or None,
    )


def _journal(args: Any) -> str:
    """Where the first start makes it: in a folder that is there, since another one is a typo."""
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


def plan_of(args: Any, name: str, *, samples: int, model: str, renderer: str) -> RunPlan:
    """The rollout and the scorer that the arguments name, as a run."""
    rollout, scorer = _code(args)
    sampling = Sampling(
        max_tokens=args.rollout_max_response_len or Sampling().max_tokens,
        temperature=args.rollout_temperature,
        top_p=args.rollout_top_p,
        top_k=max(getattr(args, "rollout_top_k", 0) or 0, 0),
        stop=tuple(getattr(args, "rollout_stop", None) or ()),
        routed_experts=_replays_routes(args),
    )
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


def tasks_of(args: Any, source: object) -> list[Task]:
    """slime's data set, by the columns that its arguments name."""
    columns = {"prompt": args.input_key}
    if getattr(args, "label_key", None):
        columns["ground_truth"] = args.label_key
    known = {field: column for field, column in columns.items() if field != column}
    return read_tasks(source, columns=known)
