"""Agents' trajectories are performed on the rollouts' stage and in the engine's yard."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / one) for one in ("rollout", "engine")]
