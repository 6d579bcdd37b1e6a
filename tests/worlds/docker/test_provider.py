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
