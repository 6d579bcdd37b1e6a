"""Tools that an agent calls through the gateway: durable steps, found again by what they are."""

import asyncio
from contextlib import asynccontextmanager

import pytest

import holdfast
from holdfast.records.errors import EnvironmentBroken
from holdfast.records.step import ToolIntent
from holdfast.rollout.tools.tool import tools_of
from support.gateway.counter import exchange, opened, post, request, until


class Shop:
    """Tools, and what they did."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.keys: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()

    @property
    def tools(self):
        @holdfast.tool(contract="at_most_once")
        async def pay(amount: int, to: str = "bob") -> str:
            """Moves money."""
            self.did.append(f"pay {amount} {to}")
            await self.hold.wait()
            return f"paid {amount} to {to}, {len(self.did)}"

        @holdfast.tool(contract="idempotent")
        def look_up(word: str, idempotency_key: str) -> str:
            """Reads something."""
            self.did.append(f"look_up {word}")
            self.keys.append(idempotency_key)
            if word == "nothing":
                raise holdfast.ToolSaysNo("there is no such word")
            if word == "fire":
                raise RuntimeError("the library burns")
            return f"{word} means {len(word)}"

        return [holdfast.Tool(pay.function, contract="at_most_once"), look_up]


def session(scenario):
    """Runs `scenario(counter, shop)`; each of its attempts has the shop's tools."""

    async def run():
        shop = Shop()
        async with opened() as (counter, trajectory, binding):
            trajectory.set_tools(_checked(shop))
            counter.first = (trajectory, binding)
            await scenario(counter, shop)

    asyncio.run(run())


def _checked(shop: Shop):
    from holdfast.rollout.tools.tool import tools_of

    return tools_of(shop.tools, where="tools")


@asynccontextmanager
async def again(counter, shop):
    """A new attempt: a new process would see the same."""
    async with counter.attempt() as (trajectory, binding):
        trajectory.set_tools(_checked(shop))
        yield trajectory, binding


async def call(counter, binding, name: str, arguments: object, **headers: str):
    return await exchange(counter.port, post(f"/tools/{name}", arguments, binding, **headers))


def test_tools_are_listed_as_a_model_is_shown_them():
    async def scenario(counter, shop):
        _, binding = counter.first
        key = f"Bearer {binding.key}"
        shown = await exchange(counter.port, request("GET", "/tools", Authorization=key))
        assert shown.status == 200
        (pay, look_up) = shown.json["tools"]
        assert pay["function"]["name"] == "pay"
        assert set(look_up["function"]["parameters"]["properties"]) == {"word"}
        theirs = await exchange(
            counter.port,
            request("GET", "/tools", Authorization=key, **{"anthropic-version": "2023-06-01"}),
        )
        assert theirs.json["tools"][0]["input_schema"] == pay["function"]["parameters"]

    session(scenario)


def test_a_call_is_recorded_and_a_new_attempt_is_told_the_same_without_doing_it_again():
    async def scenario(counter, shop):
        trajectory, binding = counter.first
        answer = await call(counter, binding, "pay", {"amount": 3})
        assert (answer.status, answer.json) == (
            200,
            {"content": "paid 3 to bob, 1", "is_error": False, "error": ""},
        )
        (step,) = trajectory.session.history.in_order
        assert isinstance(step, ToolIntent)
        assert (step.name, step.contract, step.path) == ("pay", "at_most_once", "0.0.0")
        async with again(counter, shop) as (later, binding):
            # Through the address with the key in it, and written otherwise.
            path = binding.bound_url.removeprefix(counter.gateway.url)
            raw = post(f"{path}/tools/pay", b'{ "amount" : 3.0 }')
            assert (await exchange(counter.port, raw)).json == answer.json
            assert later.session.history.in_order == [step]
        assert shop.did == ["pay 3 bob"]

    session(scenario)


def test_the_same_call_twice_is_two_calls_and_each_is_told_its_own_result_later():
    async def scenario(counter, shop):
        _, binding = counter.first
        first = [await call(counter, binding, "pay", {"amount": 3}) for _ in range(2)]
        assert shop.did == ["pay 3 bob"] * 2
        async with again(counter, shop) as (_, binding):
            later = [await call(counter, binding, "pay", {"amount": 3}) for _ in range(3)]
        contents = [item.json["content"] for item in later]
        assert contents[:2] == [item.json["content"] for item in first]
        assert contents[2] == "paid 3 to bob, 3"

    session(scenario)


def test_calls_side_by_side_stay_as_many_whatever_their_order():
    async def scenario(counter, shop):
        _, binding = counter.first
        shop.hold.clear()
        calls = [
            asyncio.create_task(call(counter, binding, "pay", {"amount": amount}))
            for amount in (1, 2, 1)
        ]
        await until(lambda: len(shop.did) == 3)
        shop.hold.set()
        first = sorted([(await item).json["content"] for item in calls])
        async with again(counter, shop) as (later, binding):
            results = await asyncio.gather(
                *(call(counter, binding, "pay", {"amount": amount}) for amount in (2, 1, 1))
            )
            assert not later.session.history.forks
        assert sorted(result.json["content"] for result in results) == first
        assert len(shop.did) == 3

    session(scenario)


def test_an_id_makes_tries_one_call_within_an_attempt_and_after_it():
    async def scenario(counter, shop):
        _, binding = counter.first
        named = {"Idempotency-Key": "call_7"}
        answers = [await call(counter, binding, "pay", {"amount": 3}, **named) for _ in range(2)]
        assert answers[0].json == answers[1].json
        other = await call(counter, binding, "pay", {"amount": 4}, **named)
        assert other.status == 400
        assert other.json["error"]["code"] == "idempotency_key_in_use"
        async with again(counter, shop) as (later, binding):
            await call(counter, binding, "pay", {"amount": 3}, **{"Idempotency-Key": "call_9"})
            same = await call(counter, binding, "pay", {"amount": 3}, **named)
            assert [item.call_id for item in later.session.history.in_order] == ["call_7", "call_9"]
        assert same.json == answers[0].json
        assert shop.did == ["pay 3 bob"] * 2

    session(scenario)


def test_whoever_lost_the_connection_and_asks_again_gets_the_call_that_is_under_way():
    async def scenario(counter, shop):
        _, binding = counter.first
        shop.hold.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", counter.port)
        writer.write(post("/tools/pay", {"amount": 5}, binding))
        await until(lambda: len(shop.did) == 1)
        writer.close()
        await until(lambda: not counter.first[0].tools.is_busy)
        pending = asyncio.create_task(call(counter, binding, "pay", {"amount": 5}))
        await until(lambda: counter.first[0].tools.is_busy)
        shop.hold.set()
        assert (await pending).json["content"] == "paid 5 to bob, 1"
        assert shop.did == ["pay 5 bob"]

    session(scenario)


@pytest.mark.parametrize(
    ("name", "arguments", "status", "command", "param"),
    [
        ("steal", {}, 404, "there is no tool 'steal'; there are: pay, look_up", None),
        ("pay", {"amount": "much"}, 400, "amount", "amount"),
        ("pay", {}, 400, "amount", "amount"),
        ("pay", {"amount": 1, "from": "me"}, 400, "from", "from"),
        ("pay", [1], 400, "object", None),
        ("pay", b"{", 400, "pay", None),
        ("pay", b"\xff", 400, "UTF-8", None),
    ],
)
def test_what_cannot_be_called_is_refused_and_leaves_nothing(
    name, arguments, status, command, param
):
    async def scenario(counter, shop):
        trajectory, binding = counter.first
        answer = await call(counter, binding, name, arguments)
        assert answer.status == status, answer.json
        assert command in answer.json["error"]["message"]
        assert answer.json["error"]["param"] == param
        assert not shop.did
        assert not trajectory.session.history.steps

    session(scenario)


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/tools/", {}, {}),
        ("/tools/pay/pay", {"amount": 1}, {}),
        ("/tools/../tools/pay/..", {"amount": 1}, {}),
        ("/tools/%2e%2e/complete", {"reward": 1}, {}),
        ("/tools/pay%0d%0aX: y", {"amount": 1}, {}),
        (f"/tools/{'x' * 5000}", {}, {}),
        ("/tools/pay", b"[" * 20_000, {}),
        ("/tools/pay", b'{"amount":' + b"[" * 20_000, {}),
        ("/tools/pay", b'{"amount": 1e999}', {}),
        ("/tools/pay", b'{"to": "\\ud800", "amount": 1}', {}),
        ("/tools/pay", b"null", {}),
        ("/tools/pay", {"amount": 1}, {"Idempotency-Key": "k" * 300}),
        ("/tools/pay", {"amount": 1}, {"Idempotency-Key": "\u00e9"}),
    ],
)
def test_hostile_calls_are_refused_and_leave_nothing(path, body, headers):
    async def scenario(counter, shop):
        trajectory, binding = counter.first
        reply = await exchange(counter.port, post(path, body, binding, **headers))
        assert 400 <= reply.status < 500, reply.raw[:300]
        assert not shop.did
        assert not trajectory.session.history.steps
        assert not trajectory.broken.is_set()
        assert not trajectory.completed.is_set()

    session(scenario)


def test_keys_that_are_wrong_or_over_call_nothing():
    async def scenario(counter, shop):
        _, binding = counter.first
        assert (await exchange(counter.port, post("/tools/pay", {"amount": 1}))).status == 401
        async with again(counter, shop) as (_, late):
            pass
        assert (await call(counter, late, "pay", {"amount": 1})).status == 409
        key = f"Bearer {binding.key}"
        wrong = await exchange(counter.port, request("GET", "/tools/pay", Authorization=key))
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
        assert not shop.did

    session(scenario)


def test_a_tool_that_says_no_has_a_result_all_the_same():
    async def scenario(counter, shop):
        _, binding = counter.first
        answer = await call(counter, binding, "look_up", {"word": "nothing"})
        assert answer.status == 200
        assert answer.json == {
            "content": "there is no such word",
            "is_error": True,
            "error": "ToolSaysNo",
        }
        async with again(counter, shop) as (_, binding):
            same = await call(counter, binding, "look_up", {"word": "nothing"})
        assert same.json == answer.json
        assert len(shop.did) == 1

    session(scenario)


def test_a_tool_that_breaks_ends_the_attempt_and_an_idempotent_one_is_run_again():
    async def scenario(counter, shop):
        trajectory, binding = counter.first
        answer = await call(counter, binding, "look_up", {"word": "fire"})
        assert (answer.status, answer.json["error"]["code"]) == (503, "environment")
        assert trajectory.broken.is_set()
        assert isinstance(trajectory.session.state.broken, EnvironmentBroken)
        async with again(counter, shop) as (_, binding):
            await call(counter, binding, "look_up", {"word": "fire"})
        assert shop.did == ["look_up fire"] * 2
        assert len(set(shop.keys)) == 1

    session(scenario)


def test_a_call_at_most_once_that_was_cut_off_is_told_as_interrupted(monkeypatch):
    monkeypatch.setattr("holdfast.gateway.calls.tool_calls.LAST_SECONDS", 0.05)

    async def scenario(counter, shop):
        shop.hold.clear()
        async with again(counter, shop) as (_, binding):
            pending = asyncio.create_task(call(counter, binding, "pay", {"amount": 8}))
            await until(lambda: len(shop.did) == 1)
        assert (await pending).status == 409
        shop.hold.set()
        async with again(counter, shop) as (_, binding):
            answer = await call(counter, binding, "pay", {"amount": 8})
        assert answer.json["error"] == "interrupted"
        assert answer.json["is_error"]
        assert shop.did == ["pay 8 bob"]

    session(scenario)


def test_a_call_that_still_runs_when_its_agent_is_gone_is_recorded():
    async def scenario(counter, shop):
        shop.hold.clear()
        async with again(counter, shop) as (_, binding):
            pending = asyncio.create_task(call(counter, binding, "pay", {"amount": 8}))
            await until(lambda: len(shop.did) == 1)
            asyncio.get_running_loop().call_later(0.05, shop.hold.set)
        await pending
        async with again(counter, shop) as (_, binding):
            answer = await call(counter, binding, "pay", {"amount": 8})
        assert answer.json["content"] == "paid 8 to bob, 1"
        assert shop.did == ["pay 8 bob"]

    session(scenario)


def test_an_agent_that_outlived_its_gateway_makes_new_calls_and_the_one_that_it_lost(monkeypatch):
    monkeypatch.setattr("holdfast.gateway.calls.tool_calls.LAST_SECONDS", 0.05)

    async def scenario(counter, shop):
        async with again(counter, shop) as (_, binding):
            await call(counter, binding, "pay", {"amount": 1})
            shop.hold.clear()
            lost = asyncio.create_task(call(counter, binding, "pay", {"amount": 2}))
            await until(lambda: len(shop.did) == 2)
        await lost
        shop.hold.set()
        async with again(counter, shop) as (later, binding):
            later.go_on()
            contents = [
                (await call(counter, binding, "pay", {"amount": amount})).json["content"]
                for amount in (2, 1)
            ]
        assert "interrupted" in contents[0]
        assert contents[1] == "paid 1 to bob, 3"
        assert shop.did == ["pay 1 bob", "pay 2 bob", "pay 1 bob"]

    session(scenario)


def test_an_agent_that_goes_on_from_a_later_state_makes_other_calls_than_those_before_it():
    async def scenario(counter, shop):
        named = {"Idempotency-Key": "call_1"}
        async with again(counter, shop) as (before, binding):
            await call(counter, binding, "pay", {"amount": 1})
            await call(counter, binding, "pay", {"amount": 1}, **named)
            steps_before = frozenset(before.session.history.steps)
            await call(counter, binding, "pay", {"amount": 1})
        async with counter.attempt() as (later, binding):
            later.set_tools(_checked(shop), made_before=steps_before)
            for path in steps_before:
                later.session.log.keep(path)
            contents = [
                (await call(counter, binding, "pay", {"amount": 1}, **headers)).json["content"]
                for headers in ({}, named, {})
            ]
            assert not later.session.history.forks
        # What came after that state, what has the id, and a new one.
        assert [listed[-1] for listed in contents] == ["3", "2", "4"]

    session(scenario)


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


async def test_the_call_that_was_lost_is_the_one_that_never_ended(monkeypatch):
    """The other one was told already, although it began later."""
    monkeypatch.setattr("holdfast.gateway.calls.tool_calls.LAST_SECONDS", 0.05)
    till = Till()
    async with opened() as (counter, first, binding):
        first.set_tools(till.tools)
        lost = asyncio.create_task(pay(counter, binding))
        await until(lambda: till.did == 1)
        assert (await pay(counter, binding)).json["content"] == "payment 2"
        counter.gateway.release(binding)
        await first.aclose()
        await lost
        async with counter.attempt() as (later, binding):
            later.set_tools(till.tools)
            later.go_on()
            again = (await pay(counter, binding)).json
            assert (again["is_error"], again["error"]) == (True, "interrupted")
            assert (await pay(counter, binding)).json["content"] == "payment 3"
