"""Without an extra, everything that needs it says so in one line; nothing else misses it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from holdfast.extras import needed_by, require
from holdfast.records.errors import UsageError
from holdfast.version import DISTRIBUTION
from support.hidden_packages import hide
from support.paths import ROOT

WALK = ROOT / "scripts" / "package" / "walk.py"


def failing_import(code: str, *, what: str, extra: str = "") -> str:
    """What the user reads of it."""
    with pytest.raises(UsageError) as caught, needed_by(what, extra=extra):
        exec(code)
    assert caught.value.__suppress_context__, "one traceback, not two"
    return str(caught.value)


def test_an_import_that_fails_names_the_use_and_the_extra() -> None:
    line = failing_import("import no_such_package.inside", what="a table", extra="parquet")
    assert line == "a table needs no_such_package: pip install '.[parquet]' (in the clone)"


def test_a_package_that_no_extra_brings_is_installed_by_its_name() -> None:
    line = failing_import("import no_such_package", what="a datum")
    assert line == "a datum needs no_such_package: pip install no_such_package"


def test_a_package_that_is_broken_is_to_be_installed_again() -> None:
    line = failing_import("raise ImportError('no libray.so')", what="--cluster", extra="ray")
    assert "--cluster needs ray, which fails (no libray.so): pip install '.[ray]'" in line


def test_a_package_of_another_version_says_what_it_lacks() -> None:
    line = failing_import("from msgspec import no_such_name", what="a thing", extra="gym")
    assert "a thing needs msgspec, which fails (cannot import name 'no_such_name'" in line


def test_a_module_of_ours_that_is_missing_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needed_by("a thing", extra="gym"):
        exec("import holdfast.no_such_module")


def test_heavy_packages_are_looked_for_without_importing_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = {"torch": object()}
    monkeypatch.setattr("importlib.util.find_spec", result.get)
    with pytest.raises(UsageError) as caught:
        require("training", extra="train")
    assert str(caught.value) == (
        "training needs transformers, safetensors, tokenizers, jinja2, peft: "
        "pip install -c constraints.txt '.[train]' (in the clone)"
    )


# --- environments that have less


def all_but_the_core() -> set[str]:
    """Every package that is installed, and that only an extra or a test needs."""
    core = set(brought_by(DISTRIBUTION))
    installed = packages_distributions().items()
    return {name for name, owners in installed if not core & set(map(canonicalize_name, owners))}


def brought_by(name: str) -> Iterator[str]:
    """The distribution and all that it requires without any extra."""
    yield canonicalize_name(name)
    for required in map(Requirement, distribution(name).requires or ()):
        if required.marker is None or required.marker.evaluate({"extra": ""}):
            yield from brought_by(required.name)


def test_in_the_core_alone_everything_works_or_names_its_extra(tmp_path: Path) -> None:
    """`make package` does the same in clean environments, also with each extra alone."""
    done = subprocess.run(
        [sys.executable, WALK], env=hide(all_but_the_core(), tmp_path), cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"the core alone: \d{3,} uses\n", done.stdout)


def test_a_file_of_rows_that_is_compared_without_pydantic_names_the_extra(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": []}\n')
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "compare", rows, rows],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=hide({"pydantic"}, tmp_path),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        f"holdfast: {rows} needs pydantic: pip install '.[evaluation]' (in the clone)\n"
    )
