"""slime's calling sequence, without slime: load, generate (prefetched or not), train, save.

The model is the list of what it was trained on; a checkpoint is a file. What slime does between the
calls (engines, weights, optimizer) is left out.
"""

import argparse
import itertools
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "package"), str(Path(__file__).parents[2])]
ROLLOUTS = 4


def flattened(data: list) -> list:
    while isinstance(data[0], list):
        data = list(itertools.chain.from_iterable(data))
    return data


def main(command: argparse.Namespace) -> None:
    import holdfast.slime
    from support.slime.arguments import arguments

    args = arguments(command.folder, command.url, samples=2, groups=2)
    checkpoint = command.folder / "checkpoint.json"
    state = {"rollout": -1, "history": []}
    if checkpoint.exists():
        state = json.loads(checkpoint.read_text())
    source = holdfast.slime.DataSource(args)
    # One thread, as an actor has it: calls are queued.
    manager = ThreadPoolExecutor(1)

    def generate(rollout: int):
        return manager.submit(holdfast.slime.generate_rollout, args, rollout, source, False)

    start = state["rollout"] + 1
    manager.submit(source.load, start - 1).result()
    coming = generate(start)
    for rollout in range(start, ROLLOUTS):
        samples = flattened(coming.result())
        if rollout + 1 < ROLLOUTS:
            coming = generate(rollout + 1)
            if not command.prefetch:
                coming.result()
        state["history"] += [[rollout, sample.index, sample.tokens] for sample in samples]
        state["rollout"] = rollout
        if rollout % 2 or rollout == ROLLOUTS - 1:
            aside = checkpoint.with_suffix(".part")
            aside.write_text(json.dumps(state))
            os.replace(aside, checkpoint)
            manager.submit(source.save, rollout).result()
    source.close()
    manager.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("url")
    parser.add_argument("--prefetch", action="store_true")
    if plan := os.environ.get("HOLDFAST_CRASH"):
        from holdfast.testing import crash_points

        crash_points.arm(plan)
    main(parser.parse_args())
