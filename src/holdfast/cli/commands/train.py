"""`holdfast train`: checks everything before anything is sampled or written."""

import argparse
import asyncio
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from holdfast.cli.commands import pipeline
from holdfast.cli.commands.cluster import training as cluster
from holdfast.cli.commands.run import how_to_go_on, sampling_of, series_of, tasks_of
from holdfast.cli.setup.command_run import name_training
from holdfast.cli.setup.connect import api_key, retry_policy, started_vllm
from holdfast.cli.setup.recorded_command import with_command
from holdfast.cli.setup.scorers import make_scorer
from holdfast.cli.setup.user_code import load_code, load_module, split
from holdfast.cli.terminal.progress import displayed
from holdfast.cli.terminal.signals import Signals
from holdfast.cli.terminal.text import notify, print_json, reader_may_leave, visible
from holdfast.embedded.arguments import VllmSettings
from holdfast.embedded.model.files import model_folder
from holdfast.engine.connect import EngineAddress
from holdfast.engine.guards.event_loop import run_in_own_loop
from holdfast.engine.options import JOURNAL
from holdfast.engine.report import many
from holdfast.engine.running.run_plan import NO_CODE, RunPlan, plan_run
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import settings_of
from holdfast.engine.stop import Stop
from holdfast.extras import require
from holdfast.journal import check_address
from holdfast.pipeline.settings import PipelineSettings, adapted, check_pipeline, corrected
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.task import Task
from holdfast.rollout.processors.processor import fingerprinted
from holdfast.tasks.read import place_of, read_tasks
from holdfast.tasks.system import system_text, with_system
from holdfast.training.advantages import OverlongPenalty
from holdfast.training.objective.objective import (
    CORRECTIONS,
    Cap,
    Clip,
    Kl,
    KlPlace,
    Objective,
    objective_named,
)
from holdfast.training.ranks.place import torchrun_place
from holdfast.training.settings import (
    Lora,
    OptimizerSettings,
    TrainerSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from holdfast.training.run.metrics import TrainingReport

PLAIN_SECONDS = 60.0
"""Seconds between two lines of progress without a terminal. Each step prints a line anyway."""
SHARED_MEMORY = 0.45
"""The share of the GPU's memory that an engine gets if the trainer uses the same GPU."""
TINY_RATE, LORA_RATE, FULL_RATE = 3e-4, 1e-5, 1e-6


def train(args: argparse.Namespace) -> int:
    args.out = args.out or args.run
    if args.watch:
        return pipeline.watch(args)
    _check_required(args)
    require("training", extra="train")
    # transformers 5.23 warns about peft 0.21, which a user cannot change.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    _follow_torchrun(args)
    if args.cluster is not None:
        cluster.check(args)
    check_address(args.journal)
    settings, tasks = settings_from(args), tasks_of(args)
    paced = pipeline.settings_from(args)
    if paced is not None:
        if args.max_staleness is None:
            paced = adapted(paced, settings, tasks=len(tasks))
        check_pipeline(paced, settings, tasks=len(tasks))
        settings = corrected(paced, settings)
    plan = _plan(args, settings, tasks)
    plan.check_rewarded()
    args.follow_run(args.run)
    args.out = args.out or args.run
    held_out = _held_out(args, plan.scorer)
    if args.until_stdin_closes:
        pipeline.end_with_stdin()
    address, model = _address(args), model_folder(args.model)
    if args.dry_run:
        from holdfast.cli.commands.dry_run import dry_training
        from holdfast.training.run.train import check_training

        check_training(plan, settings, model=model, address=address)
        return run_in_own_loop(dry_training(args, plan, settings, held_out, model=model))
    if args.only == "rollouter":
        return run_in_own_loop(pipeline.roll_out_alone(args, plan, address=address, model=model))
    if paced is not None and args.only is None:
        ended = _supervise(args, plan, settings, model=model, address=address)
        if ended is not None:
            return ended
    # A finished training needs no parts: it is reported or refused.
    return run_in_own_loop(_train(args, plan, settings, held_out, paced if args.only else None))


def _held_out(args: argparse.Namespace, scorer: Scorer | None) -> list[Task]:
    if not args.eval_tasks:
        return []
    source, columns = args.eval_tasks, dict(args.columns)
    tasks = read_tasks(source, columns=columns)
    if scorer is not None:
        scorer.check_tasks(tasks, where=lambda task: place_of(task, source, columns=columns))
    return with_system(tasks, system_text(args.system))


def _follow_torchrun(args: argparse.Namespace) -> None:
    """Under torchrun, lets every process but the first one compute for the first one, and then end.
    Returns at once in the first process, and without torchrun."""
    place = torchrun_place()
    if place is not None and (args.is_async or args.only == "rollouter"):
        raise UsageError("torchrun starts trainers: leave it out, and give --ranks N")
    if place is not None and place.rank:
        from holdfast.training.follower import follow_torchrun

        follow_torchrun(place, args.device)


def _supervise(
    args: argparse.Namespace,
    plan: RunPlan,
    settings: TrainingSettings,
    *,
    model: Path,
    address: EngineAddress,
) -> int | None:
    """Starts the parts, and returns the exit code. Returns None if the parts have no work left.
    Checks the input before an engine is started for the parts."""
    from holdfast.training.run.loop import newest_step
    from holdfast.training.run.train import check_training

    newest_step(Path(args.out), settings, run=args.run)
    if run_in_own_loop(pipeline.is_over(args)):
        return None
    check_training(plan, settings, model=model, address=address)
    return run_in_own_loop(pipeline.supervise(args, model=model, vllm=address.vllm))


def _check_required(args: argparse.Namespace) -> None:
    needed = {"FILE.py[:NAME]": args.rollout, "--tasks": args.tasks}
    if missing := [name for name, value in needed.items() if not value]:
        raise UsageError(f"the following arguments are required: {', '.join(missing)}")


def settings_from(args: argparse.Namespace) -> TrainingSettings:
    """Returns the settings of the training. Raises `UsageError` for invalid combinations of
    options."""
    rate = args.learning_rate or _default_rate(args)
    trainer = TrainerSettings(
        **_named_as(TrainerSettings, args),
        objective=_objective(args),
        optimizer=OptimizerSettings(**_named_as(OptimizerSettings, args) | {"learning_rate": rate}),
        overlong=_overlong(args),
    )
    changed = {
        "dynamic": args.dynamic or args.loss == "dapo",
        "ranks": _ranks(args),
        "reference": Path(args.reference) if args.reference else None,
        "loss": _loss_code(args),
        "weight_dir": Path(args.weight_dir) if args.weight_dir else None,
    }
    return TrainingSettings(
        **_named_as(TrainingSettings, args) | changed, trainer=trainer, lora=_lora(args)
    )


def _named_as(settings: type[msgspec.Struct], args: argparse.Namespace) -> dict[str, Any]:
    """Returns the options whose names are fields of these settings."""
    return {name: vars(args)[name] for name in settings.__struct_fields__ if name in args}


def _ranks(args: argparse.Namespace) -> int:
    place = torchrun_place()
    return int(args.ranks or (1 if place is None else place.size))


def _default_rate(args: argparse.Namespace) -> float:
    if args.lora_rank:
        return LORA_RATE
    return FULL_RATE if args.model else TINY_RATE


def _lora(args: argparse.Namespace) -> Lora | None:
    targets = tuple(name.strip() for name in (args.lora_targets or "").split(",") if name.strip())
    if not args.lora_rank:
        return None
    return Lora(args.lora_rank, args.lora_alpha, targets)


def _overlong(args: argparse.Namespace) -> OverlongPenalty | None:
    length: int | None = args.overlong_length
    if length is None:
        return None
    # The default is DAPO's share: 4,096 of 20,480 tokens.
    margin = args.overlong_margin or max(length // 5, 1)
    return OverlongPenalty(length, margin, args.overlong_penalty)


def _objective(args: argparse.Namespace) -> Objective:
    if not args.kl and (args.kl_in_reward or args.kl_estimate != Kl().estimate):
        raise UsageError("--kl-in-reward and --kl-estimate need --kl C")
    chosen = Objective() if _is_own(args.loss) else objective_named(args.loss)
    clip = chosen.clip
    bounds = {"low": args.clip_low, "high": args.clip_high}
    if changes := {name: value for name, value in bounds.items() if value is not None}:
        if not isinstance(clip, Clip | Cap):
            raise UsageError(f"the loss {args.loss} has no clip: leave out --clip-low/--clip-high")
        clip = structs.replace(clip, **changes)
    return structs.replace(
        chosen,
        clip=clip,
        kl=Kl(args.kl, args.kl_estimate, KlPlace.REWARD if args.kl_in_reward else KlPlace.LOSS),
        entropy=args.entropy,
        correction=CORRECTIONS[args.correction] if args.correction else None,
        recompute_old=args.recompute_old,
    )


def _is_own(loss: str) -> bool:
    return ".py" in loss


def _own_loss(args: argparse.Namespace) -> Any:
    """Returns the function that --loss FILE.py:NAME names, or None for a preset."""
    if not _is_own(args.loss):
        return None
    path, name = split(args.loss)
    found = getattr(load_module(path), name or "loss", None)
    if not callable(found):
        raise UsageError(f"{path} has no function {name or 'loss'!r} for --loss")
    from holdfast.training.run.checks import check_loss  # The module needs torch.

    check_loss(found)
    return found


def _loss_code(args: argparse.Namespace) -> str:
    own = _own_loss(args)
    return "" if own is None else fingerprinted(own)[0]


def _plan(args: argparse.Namespace, settings: TrainingSettings, tasks: Sequence[Task]) -> RunPlan:
    """Returns the plan. A training that the user did not name gets its name here (`args.run`)."""
    code = load_code(args.rollout, args.scorer)
    series = f"{series_of(args)}-training"
    plan = plan_run(
        f"{series}-1" if args.run is None else args.run,
        tasks=tasks,
        processor=code.processor,
        rollout=fingerprinted(code.rollout),
        scorer_code=NO_CODE if code.scorer is None else fingerprinted(code.scorer),
        samples=settings.samples,
        sampling=sampling_of(args),
        seed=settings.seed,
        group=settings.group_policy,
        settings=settings_of({**vars(args), "join": False}),
        world=args.world,
    )
    if args.run is None:
        args.run = asyncio.run(name_training(args, series, plan.spec, settings))
    spec = structs.replace(plan.spec, name=args.run)
    made = make_scorer(args, code.scorer, place=code.place, tasks=tasks)
    return with_command(structs.replace(plan, spec=spec, scorer=made), args)


async def _train(
    args: argparse.Namespace,
    plan: RunPlan,
    settings: TrainingSettings,
    held_out: list[Task],
    paced: PipelineSettings | None,
) -> int:
    from holdfast.training.run.progress import TrainingProgress
    from holdfast.training.run.trackers import check_tracker
    from holdfast.training.run.train import Assembly, TrainingCall, train_plan

    for name in args.track:
        check_tracker(name)
    words = ["holdfast", *pipeline.without_retry(sys.argv[1:])]
    model, address = model_folder(args.model), _address(args)
    stop = Stop()
    progress = TrainingProgress()
    signals = Signals(
        stop,
        resume=redact(shlex.join(words)),
        quiet=args.until_stdin_closes,
        is_idle=lambda: progress.is_loading,
    )
    signals.watch()
    show = notify if args.json else _print_line
    try:
        async with (
            displayed(progress, quiet=args.quiet or args.json, every=PLAIN_SECONDS),
            cluster.rollouts(args, plan, stop, on_connected=signals.watch) as elsewhere,
            pipeline.trainer_part(args, paced, tasks=len(plan.tasks), report=show) as part,
        ):
            journal, assembly = part
            call = TrainingCall(
                plan=plan,
                settings=settings,
                journal=journal,
                out=Path(args.out),
                model=model,
                address=address,
                eval_tasks=held_out,
                loss=_own_loss(args),
                trackers=args.track,
                report=show,
                stop=stop,
                progress=progress,
                retries_failed=args.retry_failed,
                assembly=assembly or elsewhere or Assembly(),
            )
            report = await train_plan(call)
    except HoldfastError as error:
        if progress.has_begun:
            return pipeline.end_after_sampling(args, error)
        raise
    with reader_may_leave():
        _print_report(args, report, words)
    if report.stopped:
        return signals.received or (Exit.SPENT if stop.spent else Exit.STOPPED)
    return Exit.NOTHING if report.trained_nothing else Exit.OK


def _print_report(args: argparse.Namespace, report: "TrainingReport", words: Sequence[str]) -> None:
    if args.json:
        print_json(msgspec.to_builtins(report, enc_hook=str))
    else:
        print(visible("\n".join(_last_lines(args, report))), flush=True)
    if report.stopped and not args.until_stdin_closes:
        notify(f"stopped: {report.stopped}")
        print(redact(how_to_go_on(words, report.stopped)), file=sys.stderr)


def _last_lines(args: argparse.Namespace, report: "TrainingReport") -> list[str]:
    """Returns the last lines of the output: what the training achieved, where the model is, and
    what to do next."""
    of = f" of {args.steps}" if report.stopped else ""
    head = f"trained {many(report.steps, 'step')}{of}"
    rewards = [("reward", report.rewards), ("held out", list(report.held_out.values()))]
    grown = [f"{name} {r[0]:.3f} to {r[-1]:.3f}" for name, r in rewards if len(r) > 1]
    lines = [f"{head}{': ' if grown else ''}{', '.join(grown)}"]
    loss = f"no gradient was finite; see the loss and the learning rate in {args.out}/metrics.jsonl"
    flat = report.flat_steps if report.trained_nothing else 0
    for count, why in (
        (flat, "all rewards of every group are equal; look at the scorer"),
        (report.empty_steps, "no token was sampled; the policy is asked by `await t.generate()`"),
        (report.skipped_steps, loss),
    ):
        if count:
            which = "all" if count == report.steps else str(count)
            lines.append(f"{which} of them trained nothing: {why}")
    model, journal = shlex.quote(str(report.model)), ""
    if args.journal != JOURNAL.default:
        journal = f" --journal {shlex.quote(args.journal)}"
    if report.steps:
        lines += [
            f"the model:   {report.model}",
            f"serve it:    holdfast serve --model {model}",
        ]
    if grown and not _is_better(report):
        steps = many(report.steps, "step")
        more = "try more --steps or another --learning-rate"
        lines.append(f"no better:   the reward did not rise in {steps}; {more}")
    name = shlex.quote(args.run)
    lines.append(f"look at it:  holdfast report {name}{journal} [--out FILE.html]")
    return lines


def _is_better(report: "TrainingReport") -> bool:
    """Returns whether the reward rose. Compares the last result on held-out tasks with the first.
    Without these, compares the mean of the second half of the steps with the first half."""
    rewards = report.rewards
    if len(held_out := list(report.held_out.values())) > 1:
        return held_out[-1] > held_out[0]
    middle = len(rewards) // 2
    return fmean(rewards[middle:]) > fmean(rewards[:middle])


def _address(args: argparse.Namespace) -> EngineAddress:
    return EngineAddress(
        urls=tuple(args.policy or ()),
        vllm=_vllm(args),
        api_key=api_key(args),
        dialect=args.dialect,
        retry=retry_policy(args),
        patience=args.patience,
        is_trained=True,
        waits=args.only is not None,
        remedy="serve the model that is trained alone",
    )


def _vllm(args: argparse.Namespace) -> VllmSettings | None:
    """Returns the settings of the vLLM that the training starts, or None if it starts none. Unless
    the user chose otherwise, the vLLM computes in the trainer's type and leaves memory of its GPU
    to the trainer."""
    vllm = started_vllm(args)
    if vllm is None:
        return None
    memory = vllm.memory or (SHARED_MEMORY if args.device.startswith("cuda") else None)
    return structs.replace(vllm, dtype=vllm.dtype or args.dtype, memory=memory)


def _print_line(line: str) -> None:
    with reader_may_leave():
        print(visible(redact(line)), flush=True)
