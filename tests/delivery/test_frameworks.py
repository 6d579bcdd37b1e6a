"""A framework that is missing, or of another version, is named in one line, at once."""

import importlib.metadata
import subprocess
import sys

import pytest

from holdfast.delivery.frameworks import FrameworkMissing, require


@pytest.mark.parametrize(
    ("name", "package"),
    [("trl", "trl"), ("slime", "slime"), ("verl", "verl"), ("nemo", "nemo_rl")],
)
def test_a_plug_in_without_its_framework_is_one_line(name: str, package: str) -> None:
    program = f"import sys\nsys.modules[{package!r}] = None\nimport holdfast.{name}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert f"holdfast.{name} needs {package}" in last
    assert "tested with" in last
    assert "torch" not in done.stderr, "nothing large was imported"


def test_it_is_an_import_error_and_ours() -> None:
    with pytest.raises(ImportError, match=r"tested with 1\.16\.0\): pip install nothing"):
        require("no_such_thing", tested="1.16.0", module="holdfast.x", remedy="pip install nothing")
    assert issubclass(FrameworkMissing, ImportError)


def test_another_version_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"msgspec": "9.9.9"}
    monkeypatch.setattr(importlib.metadata, "version", result.__getitem__)
    with pytest.warns(UserWarning, match=r"tested with msgspec 1\.16\.0, and 9\.9\.9"):
        require("msgspec", tested="1.16.0", module="holdfast.x", remedy="")
    result["msgspec"] = "1.16.7"
    require("msgspec", tested="1.16.0", module="holdfast.x", remedy="")


def test_what_was_tested_without_a_version_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.4.0")
    require("msgspec", tested="main of August 2026", module="holdfast.x", remedy="")
    assert not recwarn.list
