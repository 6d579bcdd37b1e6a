"""A file of the user's is imported as Python would import it, wherever it is started from."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.records.errors import UsageError
from holdfast.rollout.code import load
from holdfast.rollout.code.load import load_module
from holdfast.rollout.processors.processor import fingerprinted

SOLVE = "async def solve(t):\n    return K\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project's root, which is the working folder; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(load, "_loaded", {})
    before = dict(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def write(files: dict[str, str]) -> None:
    for name, source in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(source)


LATER = "import mypkg_a.ag\ndef value():\n    return mypkg_a.ag.K\n"
CONF = {"mypkg_a/conf.py": "K = 1\n"}
INIT = {"mypkg_a/__init__.py": ""}


@pytest.mark.parametrize(
    ("files", "source"),
    [
        (CONF | INIT, "from mypkg_a.conf import K\n"),
        (CONF | INIT, "from .conf import K\n"),
        (CONF | INIT, "from conf import K\n"),
        (CONF, "from mypkg_a.conf import K\n"),
        (CONF, "from conf import K\n"),
        (CONF | {"mypkg_a/__init__.py": "from .ag import solve\n"}, "from .conf import K\n"),
        (CONF | INIT | {"mypkg_a/mypkg_a.py": ""}, "from mypkg_a.conf import K\n"),
    ],
    ids=["package", "relative", "beside", "no init", "no package", "imported by init", "namesake"],
)
@pytest.mark.parametrize("place", [".", "mypkg_a"])
def test_a_module_imports_its_neighbours(
    files: dict[str, str], source: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place != "." and "__init__" not in str(files) and "mypkg_a" in source:
        pytest.skip("nothing says where a package without an __init__.py begins")
    write(files | {"mypkg_a/ag.py": source + SOLVE})
    file = Path("mypkg_a/ag.py").resolve()
    monkeypatch.chdir(place)
    assert load_module(file).K == 1
    assert load_module(file) is load_module(file)


def test_an_edit_within_the_second_that_changes_no_size_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for value in (1, 2):
        write({"edited.py": f"K = {value}\n"})
        os.utime("edited.py", (1_000_000_000, 1_000_000_000))
        assert vars(load_module(Path("edited.py")))["K"] == value
        monkeypatch.setattr(load, "_loaded", {})
        del sys.modules["edited"]


def test_a_package_in_a_package_is_imported_from_the_outermost() -> None:
    write(
        CONF | INIT | {"mypkg_a/sub/__init__.py": "", "mypkg_a/sub/ag.py": "from ..conf import K"}
    )
    module = load_module(Path("mypkg_a/sub/ag.py"))
    assert (module.K, module.__name__) == (1, "mypkg_a.sub.ag")


def test_a_module_in_a_package_is_found_there_by_its_neighbours() -> None:
    write(INIT | {"mypkg_a/ag.py": "K = 3\nimport mypkg_a.later\n", "mypkg_a/later.py": LATER})
    assert load_module(Path("mypkg_a/ag.py")).mypkg_a.later.value() == 3


def test_a_package_with_the_name_of_another_leaves_that_one_alone() -> None:
    write({"json/__init__.py": "", "json/ag.py": "import json\nK = json.loads('1')\n"})
    assert load_module(Path("json/ag.py")).K == 1


def test_two_files_of_one_name_are_two_modules() -> None:
    write({"one/json.py": "K = 1\n", "two/json.py": "K = 2\n"})
    assert [load_module(Path(f"{folder}/json.py")).K for folder in ("one", "two")] == [1, 2]


def test_what_a_file_is_identified_by_does_not_depend_on_its_package() -> None:
    source = "K = 1\n" + SOLVE
    write({"plain_a/ag.py": source, "mypkg_a/ag.py": source} | INIT)
    plain, packaged = load_module(Path("plain_a/ag.py")), load_module(Path("mypkg_a/ag.py"))
    assert packaged.__name__ == "mypkg_a.ag"
    first, second = (fingerprinted(module.solve) for module in (plain, packaged))
    assert first[0] == second[0]


def test_an_import_that_fails_says_where_it_was_searched_for(project: Path) -> None:
    write(INIT | {"mypkg_a/ag.py": "import nowhere_to_be_found\n"})
    with pytest.raises(UsageError, match="searched for in") as caught:
        load_module(Path("mypkg_a/ag.py"))
    assert f"{project}/mypkg_a, {project}, and in what is installed" in str(caught.value)


def test_a_relative_import_outside_a_package_says_what_it_needs() -> None:
    write(CONF | {"mypkg_a/ag.py": "from .conf import K\n"})
    with pytest.raises(UsageError, match=r"put an __init__\.py into .*mypkg_a$"):
        load_module(Path("mypkg_a/ag.py"))
