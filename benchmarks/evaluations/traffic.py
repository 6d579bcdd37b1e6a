"""What every side of the evaluation benchmark does: the same rows, turns and answers."""

import os

URL = os.environ["BENCH_URL"]
SHAPE = os.environ["BENCH_SHAPE"]
ROWS = int(os.environ["BENCH_ROWS"])
CHAT = bool(os.environ.get("BENCH_CHAT"))
"""Whether the engine is a chat API, which takes and gives messages instead of tokens."""
CONCURRENCY = 256
TOKENS = 256
TURNS = 10

QUESTION = "x" * 200
EXPECTED = "done"


def rows() -> list[dict[str, object]]:
    """No two are equal: some libraries answer equal ones from a cache."""
    return [
        {"messages": [{"role": "user", "content": f"{number:06} {QUESTION}"}]}
        for number in range(ROWS)
    ]
