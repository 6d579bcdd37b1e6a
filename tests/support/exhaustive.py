"""How much of something is done: a part by default, all of it where HOLDFAST_EXHAUSTIVE is set."""

import os


def points(fast: int, all_of_them: int) -> int:
    return all_of_them if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1" else fast
