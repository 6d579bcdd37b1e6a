"""Equal calls of a tool side by side, of which one is lost with the gateway."""

import asyncio

from counter import exchange, opened, post, until

import holdfast
from holdfast.rollout.tools.tool import tools_of


class Till:
    """A tool whose first call hangs."""

    def __init__(self) -> None:
        self.did = 0

    @property
    def tools(self):
        @holdfast.tool(contract="at_most_once")
        async def pay(amount: int) -> str:
            """Moves money."""
            self.did += 1
            number = self.did
            if number == 1:
                await asyncio.Event().wait()
            return f"payment {number}"

        return tools_of([pay], where="tools")


async def pay(counter, binding):
    return await exchange(counter.port, post("/tools/pay", {"amount": 1}, binding))


def test_the_call_that_was_lost_is_the_one_that_never_ended(monkeypatch):
    """The other one was told already, although it began later."""
    monkeypatch.setattr("holdfast.gateway.calls.tool_calls.LAST_SECONDS", 0.05)

    async def body():
        till = Till()
        async with opened() as (counter, first, binding):
            first.offer(till.tools)
            lost = asyncio.create_task(pay(counter, binding))
            await until(lambda: till.did == 1)
            assert (await pay(counter, binding)).json["content"] == "payment 2"
            counter.gateway.release(binding)
            await first.aclose()
            await lost
            async with counter.attempt() as (later, binding):
                later.offer(till.tools)
                later.go_on()
                again = (await pay(counter, binding)).json
                assert (again["is_error"], again["error"]) == (True, "interrupted")
                assert (await pay(counter, binding)).json["content"] == "payment 3"

    asyncio.run(body())
