"""Crash count: calls of tools and environments in which the process died, or was stopped, before.

Whatever was under way at a death may have caused it, and nearly always did not: drivers are killed,
machines are taken away. So a call is tried again, and again. Only one in which the process dies
every time is given up at last, or the run would never end; and before that, trajectories that are
suspected of it run with ever fewer of their like beside them, so that those which only were nearby
finish and are suspects no more (see `engine.guards.crash_suspects`).
"""

from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.replay.session import Session

SUSPECT_AFTER_CRASHES = 5
MAX_CRASHES = 25


def check_alive(session: Session, path: str, call: str) -> None:
    """Raises where the process died so often in the call at `path` that it is given up."""
    crashes = session.history.interruptions[path]
    if crashes < MAX_CRASHES:
        return
    raise session.state.fail(
        EnvironmentBroken(
            f"the process died, or was stopped, {crashes} times in the same call of {call}; it is "
            "not tried again"
        ),
        path,
    )
