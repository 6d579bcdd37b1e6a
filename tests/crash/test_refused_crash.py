"""SIGKILL of `holdfast gateway` after it refused a call. The agent lives on, hides the refusal, and
says that it is done: whatever died in between, that is not an outcome."""

import signal
import urllib.error
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine
from support.gateway.gateway_process import GONE, Agent, GatewayProcess, posted, until

FORBIDDEN = {"bad_words": ["x"]}


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(replies=("so {n}",)) as engine:
        yield engine


class Swallowing:
    """An agent that has taken the one trajectory, and goes on whatever it is told."""

    def __init__(self, place: Path, engine: FakeEngine, *, crash: str = ""):
        self.gateway = GatewayProcess(place, engine, tasks=("a",))
        self.gateway.start(crash=crash)
        self._hands = Agent(self.gateway)
        self.taken = self._hands.insist(f"{self.gateway.url}/trajectories", {"wait": 5})

    def chat(self, text: str, **more: object) -> int:
        """The status, also where the connection is lost: then it is 0."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        try:
            posted(f"{self.taken['openai_base_url']}/chat/completions", body, self.taken["key"])
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except GONE:
            return 0
        return 200

    def kill_and_start(self) -> None:
        self.gateway.signal(signal.SIGKILL)
        self.start_again()

    def start_again(self) -> None:
        assert self.gateway.ended() == -signal.SIGKILL
        self.gateway.start()
        until(lambda: self.chat("are you there") == 200, what="a new gateway")

    def complete(self) -> tuple[int, str]:
        try:
            posted(f"{self.taken['bound_url']}/complete", {"reward": 0.0})
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        return 200, ""

    def outcome(self) -> str:
        self.gateway.ended()
        assert not check(self.gateway.journal).findings
        (history,) = self.gateway.histories().values()
        assert len(history.attempts) == 1
        return history.status.name


@pytest.fixture
def agent(tmp_path, engine):
    result = Swallowing(tmp_path, engine)
    yield result
    result.gateway.close()


def test_a_refused_call_is_not_forgotten_with_the_gateway_that_refused_it(agent):
    assert agent.chat("hello", **FORBIDDEN) == 400
    agent.kill_and_start()
    status, arguments = agent.complete()
    assert status == 409
    assert "bad_words" in arguments
    assert agent.outcome() == "FAILED"


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_that_is_asked_again_is_made_good_also_across_a_kill(agent, when):
    assert agent.chat("hello", **FORBIDDEN) == 400
    if when == "before":
        agent.kill_and_start()
    assert agent.chat("hello") == 200
    if when == "after":
        agent.kill_and_start()
    assert agent.complete()[0] == 200
    assert agent.outcome() == "COMPLETED"


def test_a_refusal_is_durable_before_it_is_told(tmp_path, engine):
    """Killed in between: the agent has seen a lost connection and nothing else."""
    agent = Swallowing(tmp_path, engine, crash="gateway.refused:1")
    try:
        assert agent.chat("hello", **FORBIDDEN) == 0
        agent.start_again()
        assert agent.complete()[0] == 409
        assert agent.outcome() == "FAILED"
    finally:
        agent.gateway.close()
