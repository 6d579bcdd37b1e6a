"""Whether the example learns: `holdfast train` from the first to the last step, for several losses
and seeds, each on 200 held-out tasks before and after.

    python benchmarks/learning.py [--losses grpo,dapo,cispo,gspo] [--seeds 0,1,2] [--jobs 2]
    python benchmarks/learning.py --losses grpo --failing 0.05 [--as-zero]

With `--failing`, that share of trajectories dies with an infrastructure error, the same ones for
the same seed; with `--as-zero`, they count as wrong answers instead, as they do where failures are
not told apart. A curve that was interrupted goes on when the command is given again.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TASKS = ROOT / "examples"


def main() -> int:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_measure(args))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", default="grpo,dapo,cispo,gspo")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="curves at once")
    parser.add_argument("--failing", type=float, default=0.0, help="share of lost trajectories")
    parser.add_argument("--as-zero", action="store_true", help="score them 0 instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    return parser.parse_args()


async def _measure(args: argparse.Namespace) -> int:
    curves = [(loss, int(s)) for s in args.seeds.split(",") for loss in args.losses.split(",")]
    places = asyncio.Semaphore(args.jobs)
    ends = await asyncio.gather(*(_curve(args, loss, seed, places) for loss, seed in curves))
    reached = [end for end in ends if end is not None]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used.ru_utime + used.ru_stime) / len(curves)
    print(f"{len(curves)} curves, {cpu:.0f} s of CPU each, engine included")
    if reached:
        print(f"held out at the end: least {min(reached):.3f}, mean {statistics.mean(reached):.3f}")
    return 0 if len(reached) == len(curves) else 1


async def _curve(
    args: argparse.Namespace, loss: str, seed: int, places: asyncio.Semaphore
) -> float | None:
    name = f"{loss}-{seed}" + (f"-{'zero' if args.as_zero else 'lost'}" if args.failing else "")
    folder = args.out / name
    command = [
        sys.executable, "-m", "holdfast", "train",
        str(ROOT / "benchmarks" / "learning_rollout.py"),
        "--tasks", str(TASKS / "train.jsonl"), "--eval-tasks", str(TASKS / "held_out.jsonl"),
        "--run", name, "--out", str(folder), "--journal", str(args.out / f"{name}.db"),
        "--loss", loss, "--seed", str(seed), "--steps", str(args.steps),
        "--eval-every", str(args.steps), "--max-retry", "0", "--device", args.device,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "FAILING": str(args.failing),
        "FAILING_AS_ZERO": "1" if args.as_zero else "",
        "FAILING_SEED": str(seed),
    }
    async with places:
        with open(args.out / f"{name}.log", "ab") as log:
            child = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment
            )
            code = await child.wait()
    if code:
        print(f"{name:<16} exit code {code}: {args.out / name}.log", flush=True)
        return None
    rewards, held_out = _read_metrics(folder / "metrics.jsonl")
    middle = " ".join(
        f"{statistics.mean(rewards[i : i + 5]):.2f}" for i in range(0, len(rewards), 5)
    )
    print(f"{name:<16} held out {held_out[0]:.3f} → {held_out[-1]:.3f}   {middle}", flush=True)
    return held_out[-1]


def _read_metrics(path: Path) -> tuple[list[float], list[float]]:
    """Mean rewards by step, and those on held-out tasks, in the order of steps."""
    rewards: dict[int, float] = {}
    held_out: dict[int, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("reward") is not None:
            rewards[row["step"]] = row["reward"]
        if row.get("eval_reward") is not None:
            held_out[row["step"]] = row["eval_reward"]
    return [rewards[s] for s in sorted(rewards)], [held_out[s] for s in sorted(held_out)]


if __name__ == "__main__":
    sys.exit(main())
