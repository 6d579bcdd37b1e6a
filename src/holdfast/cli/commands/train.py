"""`holdfast train`: everything is checked before anything is sampled or written."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from holdfast.cli.setup.connect import api_key
from holdfast.cli.setup.user_code import (
    load_module,
    processor_of,
    rollout_in,
    scorer_in,
    scorer_module,
    split,
)
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.cli.terminal.signals import Signals
from holdfast.cli.terminal.text import notify, print_json, visible
from holdfast.engine.connect import EngineAddress
from holdfast.engine.guards.event_loop import run_in_own_loop
from holdfast.engine.run_plan import NO_CODE, RunPlan, plan_run
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import settings_of
from holdfast.engine.stop import Stop
from holdfast.journal import check_address, open_journal
from holdfast.policy.retry import RetryPolicy
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, read_tasks
from holdfast.rollout.processors.processor import fingerprinted
from holdfast.training import extra
from holdfast.training.objective.objective import (
    CORRECTIONS,
    Cap,
    Clip,
    Kl,
    KlPlace,
    Objective,
    objective_named,
)
from holdfast.training.settings import (
    Lora,
    OptimizerSettings,
    TrainerSettings,
    TrainingSettings,
)

TINY_RATE, LORA_RATE, FULL_RATE = 3e-4, 1e-5, 1e-6


def train(args: argparse.Namespace) -> int:
    extra.require()
    check_address(args.journal)
    settings = settings_from(args)
    plan = _plan(args, settings)
    held_out = read_tasks(Path(args.eval_tasks)) if args.eval_tasks else []
    return run_in_own_loop(_train(args, plan, settings, held_out))


def settings_from(args: argparse.Namespace) -> TrainingSettings:
    """Raises `UsageError` for what makes no sense."""
    trainer = TrainerSettings(
        objective=_objective(args),
        optimizer=OptimizerSettings(
            learning_rate=args.learning_rate or _default_rate(args),
            schedule=args.schedule,
            warmup_steps=args.warmup_steps,
            weight_decay=args.weight_decay,
            max_norm=args.max_norm,
        ),
        steps=args.steps,
        updates=args.updates,
        row_tokens=args.row_tokens,
        truncation=args.truncation,
    )
    return TrainingSettings(
        trainer=trainer,
        groups=args.groups,
        samples=args.samples,
        seed=args.seed,
        dynamic=args.dynamic or args.loss == "dapo",
        max_draws=args.max_draws,
        checkpoint_every=args.checkpoint_every,
        keep_checkpoints=args.keep_checkpoints,
        eval_every=args.eval_every,
        eval_samples=args.eval_samples,
        device=args.device,
        dtype=args.dtype,
        lora=_lora(args),
        reference=Path(args.reference) if args.reference else None,
        gradient_checkpointing=args.gradient_checkpointing,
        loss=_loss_code(args),
    )


def _default_rate(args: argparse.Namespace) -> float:
    if args.lora_rank:
        return LORA_RATE
    return FULL_RATE if args.model else TINY_RATE


def _lora(args: argparse.Namespace) -> Lora | None:
    if not args.lora_rank:
        return None
    targets = tuple(args.lora_targets.split(",")) if args.lora_targets else ()
    return Lora(args.lora_rank, args.lora_alpha, targets)


def _objective(args: argparse.Namespace) -> Objective:
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
    """The function that --loss FILE.py:NAME names; None for a preset."""
    if not _is_own(args.loss):
        return None
    path, name = split(args.loss)
    found = getattr(load_module(path), name or "loss", None)
    if not callable(found):
        raise UsageError(f"{path} has no function {name or 'loss'!r} for --loss")
    return found


def _loss_code(args: argparse.Namespace) -> str:
    own = _own_loss(args)
    return "" if own is None else fingerprinted(own)[0]


def _plan(args: argparse.Namespace, settings: TrainingSettings) -> RunPlan:
    path, name = split(args.rollout)
    tasks = read_tasks(Path(args.tasks))
    module = load_module(path)
    rollout = rollout_in(module, path, name)
    scorer = scorer_in(module, path, args.scorer)
    return plan_run(
        args.run,
        tasks=tasks,
        processor=processor_of(rollout, path),
        rollout=fingerprinted(rollout, module=module),
        scorer=None if scorer is None else Scorer(scorer),  # type: ignore[arg-type]
        scorer_code=NO_CODE
        if scorer is None
        else fingerprinted(scorer, module=scorer_module(path, args.scorer)),
        samples=settings.samples,
        sampling=Sampling(args.max_tokens, args.temperature),
        seed=settings.seed,
        group=settings.group_policy,
        settings=settings_of({**vars(args), "join": False}),
    )


async def _train(
    args: argparse.Namespace, plan: RunPlan, settings: TrainingSettings, held_out: list[Task]
) -> int:
    from holdfast.training.run.metrics import check_tracker, open_tracker
    from holdfast.training.run.train import TINY, check_model, train_plan

    for name in args.track:
        check_tracker(name)
    resume = redact(shlex.join(["holdfast", *sys.argv[1:]]))
    model, address = Path(args.model) if args.model else TINY, _address(args)
    check_model(model)
    stop = Stop()
    signals = Signals(stop, resume=resume)
    signals.watch()
    out = Path(args.out)
    journal = open_journal(args.journal)
    try:
        report = await train_plan(
            plan,
            settings,
            journal=journal,
            out=out,
            model=model,
            address=address,
            eval_tasks=held_out,
            loss=_own_loss(args),
            open_trackers=lambda: [open_tracker(n, run=args.run, folder=out) for n in args.track],
            report=notify if args.json else _print_line,
            stop=stop,
        )
    finally:
        await journal.close()
    if args.json:
        print_json(msgspec.to_builtins(report, enc_hook=str))
    if report.stopped:
        notify(f"stopped: {report.stopped}")
        print(f"to go on: {resume}", file=sys.stderr)
        return signals.received or Exit.STOPPED
    if not args.json:
        print(f"trained {report.steps} steps; the model is in {visible(str(report.model))}")
    return Exit.OK


def _address(args: argparse.Namespace) -> EngineAddress:
    return EngineAddress(
        urls=tuple(args.policy or ()),
        api_key=api_key(args),
        dialect=args.dialect,
        retry=RetryPolicy(
            args.call_tries, args.call_deadline, args.try_timeout, stall_timeout=args.stall_timeout
        ),
        patience=args.patience,
        remedy="serve the model that is trained alone",
    )


def _print_line(line: str) -> None:
    print(visible(redact(line)), flush=True)
