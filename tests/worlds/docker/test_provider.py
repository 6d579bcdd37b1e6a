"""Containers, with the stand-in of an engine, and with a real one (`make worlds`)."""

import os
from collections.abc import Iterator

import pytest

from holdfast.testing import FakeContainers, WorldConformance
from holdfast.worlds.contract.spec import parse_spec
from holdfast.worlds.docker.provider import ContainerProvider
from support.environments.workspaces import needs_bwrap

SPEC = parse_spec("docker:busybox")
REAL = os.environ.get("HOLDFAST_WORLDS", "")
PODMAN = os.environ.get("HOLDFAST_WORLDS_PODMAN", "")
"""The address of Podman's API, which has the image docker.io/library/busybox."""


@needs_bwrap
class TestStandIn(WorldConformance):
    spec = SPEC

    address = ""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def engine(cls) -> Iterator[None]:
        with FakeContainers() as engine:
            cls.address = engine.address
            yield

    def provider(self) -> ContainerProvider:
        return ContainerProvider("docker", self.address)


@pytest.mark.skipif(not REAL, reason="make worlds starts a real engine")
class TestRealEngine(WorldConformance):
    spec = SPEC

    def provider(self) -> ContainerProvider:
        return ContainerProvider("docker", REAL)


@pytest.mark.skipif(not PODMAN, reason="HOLDFAST_WORLDS_PODMAN names no engine")
class TestPodman(WorldConformance):
    spec = parse_spec("podman:busybox")

    def provider(self) -> ContainerProvider:
        return ContainerProvider("podman", PODMAN)
