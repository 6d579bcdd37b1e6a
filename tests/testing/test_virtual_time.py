import asyncio
import time

import pytest

from holdfast.testing import run_in_virtual_time
from holdfast.testing.virtual_time import NothingDue


def test_hours_pass_at_once_and_in_their_order() -> None:
    async def main() -> list[str]:
        names = []

        async def sleep(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            names.append(name)

        await asyncio.gather(sleep("late", 7200), sleep("early", 3600), sleep("now", 0))
        return names

    began = time.monotonic()
    result, seconds = run_in_virtual_time(main())
    assert (result, seconds) == (["now", "early", "late"], 7200.0)
    assert time.monotonic() - began < 600


def test_a_timeout_comes_when_it_is_due() -> None:
    async def main() -> bool:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 3600)
        except TimeoutError:
            return True
        return False

    assert run_in_virtual_time(main()) == (True, 3600.0)


def test_a_deadlock_is_named() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingDue):
        run_in_virtual_time(main())
