"""The simulations share the rollouts' stage and worlds."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "rollout"))
