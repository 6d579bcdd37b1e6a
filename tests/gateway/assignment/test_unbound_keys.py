"""An agent that outlives the process which it spoke to goes on with its key, as the same attempt; a
stale one is refused, whichever process is asked."""

import asyncio
import stat

import pytest

from holdfast.gateway.assignment.queue import PendingTrajectories
from holdfast.gateway.calls.attempt_status import AttemptLookup
from holdfast.gateway.protocol.keys import Bearer, Keys, load_or_create_secret
from holdfast.records.errors import UsageError
from holdfast.records.step import AttemptStarted
from support.engine.local_run import LocalRun
from support.gateway.external_agents import ask, converse, post
from support.gateway.incarnations import SECRET, Life, perform


def test_an_agent_goes_on_with_its_key_and_its_attempt():
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take()
            before = await converse(http, taken)
        async with Life(local, http) as second:
            messages = await converse(http, second.moved(taken), 3)
            assert messages[:2] == before
            assert await second.complete(taken) == (200, {"completed": True, "reward": 1.0})

    perform(body)
    history = local.history()
    assert history.status.name == "COMPLETED"
    assert len(local.policy.requests) == 3
    assert len(history.attempts) == 1
    assert len(history.generations) == 3
    assert not history.forks


def test_what_an_agent_was_told_before_stays_part_of_its_attempt():
    """It will not ask for it again."""
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take()
            await converse(http, taken)
        async with Life(local, http) as second:
            await second.complete(taken)

    perform(body)
    assert len(local.history().generations) == 2
    assert not local.history().forks


def test_what_an_earlier_attempt_asked_instead_is_not_part_of_it():
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take(task="a")
            await converse(http, taken, 3)
            again = await first.take(task="a")
            (text, *_) = await converse(http, again, 1)
            messages = [
                *taken["task"]["messages"],
                {"role": "assistant", "content": text},
                {"role": "user", "content": "something else"},
            ]
            assert (await ask(http, again, *messages))[0] == 200
        async with Life(local, http) as second:
            assert await second.status(taken) == 409
            await second.complete(again)

    perform(body)
    history = local.history()
    assert len(history.generations) == 2, "the beginning, and what it asked in place of the rest"
    assert len(history.attempts) == 2


def test_an_attempt_is_durable_before_its_key_is_told():
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take()
            (records,) = [
                records async for _, records in local.journal.histories(await run_of(local))
            ]
            assert [type(record) for record in records] == [AttemptStarted]
            assert records[0].attempt == taken["attempt"] == 1
            again = await first.take(task="a")
            assert again["attempt"] == 2
            third = await first.take(task="a")
        # The first and the second wrote nothing but their beginning.
        async with Life(local, http) as second:
            assert [await second.status(item) for item in (taken, again, third)] == [409, 409, 200]
            assert await second.status(again) == 409
            await second.complete(third)

    perform(body)
    assert len(local.history().attempts) == 3


async def run_of(local: LocalRun):
    return await local.journal.find_run("run")


def test_the_last_attempt_is_kept_for_its_agent_for_a_while_and_no_longer():
    local = LocalRun("a", "b")

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take(task="a")
            await converse(http, taken, 1)
        async with Life(local, http, rejoin=3.0) as second:
            other = await second.take()
            assert other["trajectory"] == "run/b/0"
            url = f"{second.url}/trajectories"
            assert (await post(http, url, {"wait": 0.1}))[0] == 404
            late = await second.take()
            assert (late["trajectory"], late["attempt"]) == ("run/a/0", 2)
            assert await second.status(taken) == 409
            for item in (other, late):
                await second.complete(item)

    perform(body)


def test_an_agent_whose_attempt_failed_is_refused_also_after_a_restart():
    local = LocalRun()

    async def body(http):
        async with Life(local, http, silence=2.0) as first:
            taken = await first.take()
            again = await first.take()
            assert again["attempt"] == 2
        async with Life(local, http) as second:
            assert await second.status(taken) == 409
            assert await second.status(again) == 200
            await second.complete(again)

    perform(body)
    assert [failure.type for failure in local.history().failures] == ["AgentSilent"]


def test_an_end_that_is_told_again_is_confirmed_and_changes_nothing():
    local = LocalRun("a", "b")

    async def body(http):
        async with Life(local, http) as first:
            taken, other = await first.take(task="a"), await first.take(task="b")
            await first.complete(taken, 0.25)
            assert await first.complete(taken, 0.75) == (200, {"completed": True, "reward": 0.25})
            assert await first.status(taken) == 409
        async with Life(local, http) as second:
            assert await second.complete(taken, 0.75) == (200, {"completed": True, "reward": 0.25})
            assert await second.status(taken) == 409
            await second.complete(other)

    perform(body)
    assert local.history().reward == 0.25


def test_an_end_is_confirmed_when_it_is_durable():
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take()
            await first.complete(taken)
            rows = await local.journal.trajectories(await run_of(local))
            assert [row.status.name for row in rows] == ["COMPLETED"]

    perform(body)


def test_a_taker_that_goes_away_before_it_is_told_leaves_the_trajectory_to_the_next():
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            held = asyncio.Event()
            begin = local.journal.append

            async def slow(*args, **options):
                held.set()
                await asyncio.sleep(0.3)
                return await begin(*args, **options)

            local.journal.append = slow
            url = f"{first.url}/trajectories"
            gone = asyncio.create_task(post(http, url, {"wait": 5}))
            await held.wait()
            gone.cancel()
            taken = await first.take()
            assert taken["trajectory"] == "run/a/0"
            assert await first.status(taken) == 200
            await first.complete(taken)

    perform(body)
    assert local.history().status.name == "COMPLETED"


def test_waiting_takers_are_told_when_the_run_is_over():
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take()
            waiting = asyncio.create_task(post(http, f"{first.url}/trajectories", {"wait": 30}))
            await asyncio.sleep(0.1)
            await first.complete(taken)
            status, message = await waiting
            assert (status, message["error"]["code"]) == (410, "run_over")

    perform(body)


def test_keys_of_other_runs_and_forged_ones_are_refused():
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take()
            other = Keys(SECRET).make(Bearer("another/a/0", 1, 1))
            later = Keys(SECRET).make(Bearer("run/a/0", 9, 9))
            forged = Keys(b"x" * 32).make(Bearer("run/a/0", 1, 1))
            results = [await first.status({"key": key}) for key in (other, later, forged)]
            assert results == [409, 409, 401]
            await first.complete(taken)

    perform(body)


def test_a_register_knows_only_its_own_run():
    local = LocalRun()

    async def body(http):
        async with Life(local, http) as first:
            await first.complete(await first.take())
        register = AttemptLookup(local.journal, await run_of(local))
        assert await register.status("run/z/0") is None
        result = await register.status("run/a/0")
        assert (result.attempts, result.finished, result.reward) == (1, True, 1.0)

    perform(body)


def test_the_secret_is_made_once_and_readable_to_its_owner_only(tmp_path):
    path = tmp_path / "secret"
    secret = load_or_create_secret(path)
    assert load_or_create_secret(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others can read"):
        load_or_create_secret(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(UsageError, match="not a secret of a gateway"):
        load_or_create_secret(path)
    with pytest.raises(UsageError, match="No such file"):
        load_or_create_secret(tmp_path / "nowhere" / "secret")


def test_calls_at_once_of_an_agent_that_outlived_the_gateway_are_all_answered(monkeypatch):
    """They come before the trajectory is open again, and only one of them can be the first."""
    local = LocalRun()
    opening = asyncio.Event()
    put = PendingTrajectories.put

    async def late(self, offer):
        await opening.wait()
        await put(self, offer)

    async def body(http):
        async with Life(local, http) as first:
            taken = await first.take()
            await converse(http, taken, 1)
        monkeypatch.setattr(PendingTrajectories, "put", late)
        async with Life(local, http) as second:
            moved = second.moved(taken)
            requests = [
                asyncio.create_task(ask(http, moved, {"role": "user", "content": f"part {n}"}))
                for n in range(3)
            ]
            await asyncio.sleep(0.3)
            opening.set()
            statuses = [status for status, _ in await asyncio.gather(*requests)]
            await second.complete(taken)
            return statuses

    assert perform(body) == [200, 200, 200]
    assert len(local.history().attempts) == 1
    assert len(local.history().generations) == 4
