"""What travels to the nodes is measured before anything is begun."""

import pytest

from holdfast.cluster.folder import travel_folder
from holdfast.records.errors import UsageError


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "agent.py").write_text("x = 1\n")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_keeps_its_place_in_the_folder_of_the_command(project):
    folder = travel_folder(project / "pkg" / "agent.py")
    assert folder.root == project
    assert folder.place(project / "pkg" / "agent.py") == "pkg/agent.py"


def test_a_file_elsewhere_travels_with_its_own_folder(project, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "agent.py"
    other.write_text("x = 1\n")
    folder = travel_folder(other)
    assert folder.root == other.parent
    assert folder.place(other) == "agent.py"


def test_one_that_is_too_large_is_refused_and_names_what_is_large(project):
    (project / "data" / "rows.bin").write_bytes(bytes(3000))
    with pytest.raises(UsageError, match=r"most of it in data .* --cluster-exclude data"):
        travel_folder(project / "pkg" / "agent.py", most=2000)
    assert travel_folder(project / "pkg" / "agent.py", exclude=("data",), most=2000)


def test_what_holds_no_code_is_not_counted(project):
    for name in (".git", ".venv"):
        (project / name).mkdir()
        (project / name / "large").write_bytes(bytes(3000))
    (project / "run.db").write_bytes(bytes(3000))
    assert ".git/" in travel_folder(project / "pkg" / "agent.py", most=2000).excludes
