"""While a run works, Python looks for cycles less often; afterwards everything is as it was."""

import gc

from holdfast.engine.guards.gc import OBJECTS, fewer_collections
from support.engine.yard import Yard, turn


def test_a_run_is_left_in_peace_and_leaves_everything_as_it_was():
    before, seen = gc.get_threshold(), []

    async def solve(t):
        await turn(t)
        seen.append(gc.get_threshold()[0])

    Yard().run(solve)
    assert seen == [OBJECTS]
    assert gc.get_threshold() == before


def test_runs_that_overlap_put_back_what_the_first_found():
    before = gc.get_threshold()
    first, second = fewer_collections(), fewer_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == OBJECTS
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_who_turned_collections_off_is_left_alone():
    before = gc.get_threshold()
    try:
        gc.set_threshold(0)
        with fewer_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
