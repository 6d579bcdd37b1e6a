"""A simulated cluster for tests: several Ray nodes on this machine, each of which can be killed."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path


class SimulatedCluster:
    """Nodes 1, 2, … beside the head, which has as many CPUs as it is given (0: no workers)."""

    def __init__(self, nodes: int, *, cpus: int = 2, head_cpus: int = 0):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "nodes.py"), str(head_cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self.address = str(self._answer()["address"])
        self.raylets: dict[int, int] = {}
        """The processes of the nodes, by their index."""
        for _ in range(nodes):
            self.add(cpus)

    def __enter__(self) -> "SimulatedCluster":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._errors.close()

    def add(self, cpus: int = 2, gpus: int = 0, *, folder: str = "") -> int:
        """Its index. `folder`: where its Python looks first for what it imports."""
        answer = self._ask(f"add {cpus} {gpus} {folder}")
        self.raylets[int(answer["index"])] = int(answer["pid"])
        return int(answer["index"])

    def kill(self, index: int) -> None:
        """SIGKILL to the node's raylet: whatever ran on it is gone."""
        self._ask(f"kill {index}")

    def _ask(self, command: str) -> dict[str, str]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, str]:
        assert self._process.stdout is not None
        # Ray prints lines of its own.
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        self._errors.seek(0)
        raise RuntimeError(f"the cluster's process ended: {self._errors.read()[-3000:]}")
