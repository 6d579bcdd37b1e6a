"""A network namespace with cables to this machine, each of which can be pulled."""

import os
import shutil
import subprocess

import pytest


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class NetworkNamespace:
    """For as long as the block lasts. A command that is run `inside` reaches this machine by its
    cables alone, at `address(cable)`."""

    def __init__(self, *cables: str):
        self._name = f"hf{os.getpid()}"
        self._cables = cables

    def __enter__(self) -> "NetworkNamespace":
        _ip("netns", "add", self._name)
        for number, cable in enumerate(self._cables):
            here, there = self._ends(cable)
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self._name)
            _ip("addr", "add", f"{self.address(cable)}/30", "dev", here)
            _ip("link", "set", here, "up")
            inside = f"10.213.{number}.2/30"
            _ip("-n", self._name, "addr", "add", inside, "dev", there)
            _ip("-n", self._name, "link", "set", there, "up")
        return self

    def __exit__(self, *error: object) -> None:
        for cable in self._cables:
            _ip("link", "del", self._ends(cable)[0])
        _ip("netns", "del", self._name)

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command."""
        return ("ip", "netns", "exec", self._name)

    def address(self, cable: str) -> str:
        return f"10.213.{self._cables.index(cable)}.1"

    def pull(self, cable: str) -> None:
        """What is sent is lost, without a word to either side."""
        _ip("link", "set", self._ends(cable)[0], "down")

    def plug_in(self, cable: str) -> None:
        _ip("link", "set", self._ends(cable)[0], "up")

    def _ends(self, cable: str) -> tuple[str, str]:
        end = f"{self._name}{self._cables.index(cable)}"
        return f"{end}a", f"{end}b"


def skip_where_there_are_none() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and `ip` (iproute2)")
    try:
        with NetworkNamespace("trial"):
            pass
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
