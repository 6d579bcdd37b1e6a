"""What is built and shipped: its name, its version, its image."""

import re
import subprocess
import sys
import tomllib

import pytest

from holdfast.version import DISTRIBUTION, UNKNOWN, installed_version
from support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", DOCKERFILE)
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_distribution_has_the_name_that_the_version_is_looked_up_by() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["project"]["scripts"].keys() == {"holdfast", DISTRIBUTION}


def test_extras_name_the_distribution_itself() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    named = [name for listed in extras.values() for name in listed if name.startswith("holdfast")]
    assert named
    assert all(name.startswith(f"{DISTRIBUTION}[") for name in named)
    for name in named:
        assert set(name.partition("[")[2].rstrip("]").split(",")) <= extras.keys()


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("v0.2.0", "0.2.0"),
        ("v1.0.0rc1", "1.0.0rc1"),
        ("0.2.0", None),
        ("v2", None),
        ("x-v1.0.0", None),
    ],
)
def test_only_tags_of_versions_are_versions(tag: str, version: str | None) -> None:
    matched = re.match(PROJECT["tool"]["hatch"]["version"]["tag-pattern"], tag)
    assert (matched["version"] if matched else None) == version


def test_a_tree_that_nobody_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.version.DISTRIBUTION", "holdfast-that-is-not-there")
    assert installed_version() == UNKNOWN


def test_the_command_says_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"holdfast {installed_version()}\n"


# --- the image


def test_the_image_copies_what_is_there_and_what_it_may_see() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for word, rest in instructions():
        if word == "COPY":
            *sources, _ = rest.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in allowed, source


def test_the_image_runs_the_demo_without_privileges() -> None:
    arguments = dict(instructions())
    assert arguments["USER"] == "holdfast"
    assert arguments["CMD"] == '["python", "scripts/demo.py"]'
    assert (ROOT / "scripts" / "demo.py").exists()
    order = [word for word, _ in instructions()]
    assert order[0] == "FROM"
    assert order.index("USER") > order.index("RUN")


def test_the_image_has_what_the_package_is_built_from() -> None:
    copied = " ".join(rest for word, rest in instructions() if word == "COPY").split()
    project = PROJECT["project"]
    assert {"pyproject.toml", "src", project["readme"], *project["license-files"]} <= set(copied)
