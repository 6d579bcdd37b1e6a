"""A gym of eval-protocol's own, served by its own package, played here.

Runs where HOLDFAST_EVAL_PROTOCOL_PYTHON names a Python that has eval-protocol and gymnasium.
"""

import json
import os
import re
import subprocess
from collections import deque
from pathlib import Path

import pytest

from holdfast.evaluation.eval_protocol.gym.processor import MCPGymRolloutProcessor
from support.evaluation.gym_runs import rows_of, yard_of
from support.rollout.stage import Oracle, text_of

PYTHON = os.environ.get("HOLDFAST_EVAL_PROTOCOL_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="HOLDFAST_EVAL_PROTOCOL_PYTHON is not set")
MOVES = {"LEFT": (0, -1), "DOWN": (1, 0), "RIGHT": (0, 1), "UP": (-1, 0)}


def lake() -> Path:
    """Where the package keeps its frozen lake."""
    code = "import importlib.util as u; print(u.find_spec('eval_protocol').origin)"
    process = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    return Path(process.stdout.strip()).parent / "mcp_servers" / "frozen_lake" / "server.py"


def way_over(grid: str) -> list[str]:
    """The shortest way to the goal that meets no hole."""
    lines = [line for line in grid.split("\n") if line and set(line) <= set("SFHG")]
    waiting, seen = deque([(0, 0, [])]), {(0, 0)}
    while waiting:
        row, column, moves = waiting.popleft()
        if lines[row][column] == "G":
            return moves
        for name, (down, right) in MOVES.items():
            a, b = row + down, column + right
            inside = 0 <= a < len(lines) and 0 <= b < len(lines)
            if inside and (a, b) not in seen and lines[a][b] != "H":
                seen.add((a, b))
                waiting.append((a, b, [*moves, name]))
    raise AssertionError("there is always a way")


def walking(request) -> str:
    text = text_of(request.prompt)
    (first, *_) = re.findall(r"'grid': '(.*?)'", text)
    plain = re.sub(r"\\x1b\[[0-9;]*m", "", first).replace("\\n", "\n")
    moves = way_over(plain)
    call = {"name": "lake_move", "arguments": {"action": moves[text.count("<tool_call>")]}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def test_the_frozen_lake_of_the_real_package_is_crossed(monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    local = yard_of(
        walking, environment_context={"seed": 42}, user_prompt_template="State: {observation}"
    )
    assert isinstance(local.policy, Oracle)
    local.run(MCPGymRolloutProcessor(lake(), python=PYTHON), max_retry=0)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    (row,) = rows_of(local)
    assert row.get_total_reward() == 1.0
    assert row.get_terminated()
    assert row.get_termination_reason() == "control_plane_signal"
