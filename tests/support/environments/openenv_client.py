"""A typed client of the guessing game. Importing it imports openenv, which takes seconds."""

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server import State

from support.environments.openenv_host import Guess, Hint


class GuessClient(EnvClient[Guess, Hint, State]):
    def _step_payload(self, action: Guess) -> dict[str, object]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, object]) -> StepResult[Hint]:
        return StepResult(Hint(**payload["observation"]), payload["reward"], payload["done"])

    def _parse_state(self, payload: dict[str, object]) -> State:
        return State(**payload)


def typed(reply: str) -> Guess:
    return Guess(number=int(reply))
