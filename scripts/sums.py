"""Writes the tasks that the calculator is trained on, and those that it is measured by.

    python scripts/sums.py

Sums of two or three numbers: `train.jsonl` (400) and `held_out.jsonl` (200), none in both.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

QUESTIONS = ("What is {}?", "Compute {}.", "How much is {}?", "Calculate {}.")


def main() -> None:
    seen: set[str] = set()
    for name, prefix, count in (("held_out", "new-sum", 200), ("train", "sum", 400)):
        lines = [json.dumps(row) + "\n" for row in sums(prefix, count, seen)]
        (Path(__file__).parents[1] / "examples" / f"{name}.jsonl").write_text(
            "".join(lines), encoding="utf-8"
        )


def sums(prefix: str, count: int, seen: set[str]) -> Iterator[dict[str, str]]:
    """The same ones each time. Adds their prompts to `seen`, and gives none that is there."""
    choose = random.Random(prefix)
    for number in range(1, count + 1):
        prompt = ""
        while not prompt or prompt in seen:
            terms = [
                choose.randint(2, choose.choice((99, 999))) for _ in range(choose.choice((2, 3)))
            ]
            prompt = choose.choice(QUESTIONS).format(" + ".join(map(str, terms)))
        seen.add(prompt)
        yield {"id": f"{prefix}-{number}", "prompt": prompt, "ground_truth": str(sum(terms))}


if __name__ == "__main__":
    main()
