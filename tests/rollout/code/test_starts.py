"""What is of this start of a program alone is recognized by what it is, and nothing else is."""

import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.rollout.code.starts import is_of_this_start, without_start


@pytest.mark.parametrize("clock", [time.time, time.monotonic, time.perf_counter])
def test_a_time_since_the_process_began_is_of_this_start(clock) -> None:
    assert is_of_this_start(clock() + 0.000123) or clock() < 70


def test_a_process_knows_when_it_began_however_late_it_looks() -> None:
    code = (
        "import time; began = time.time(); time.sleep(4); "
        "from holdfast.rollout.code.starts import is_of_this_start; print(is_of_this_start(began))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_clock_in_other_units_is_one_too() -> None:
    assert all(is_of_this_start(time.time() * unit) for unit in (1_000, 1_000_000))
    assert is_of_this_start(time.time_ns())
    assert is_of_this_start(time.monotonic_ns()) or time.monotonic() < 70


@pytest.mark.parametrize("number", [0, 1, 3e-4, 0.25, 1_000_000, 10**400, float("nan")])
def test_other_numbers_are_not(number) -> None:
    assert not is_of_this_start(number)
    assert not is_of_this_start(time.time() - 30 * 24 * 3600)


@pytest.mark.parametrize(
    "make",
    [
        lambda: str(uuid.uuid4()),
        lambda: f"run-{uuid.uuid4().hex}",
        lambda: f"run-{time.time()}",
        lambda: f"{time.time_ns()}",
        lambda: datetime.now().isoformat(),
        lambda: datetime.now(UTC).isoformat(),
        lambda: f"{datetime.now():%Y%m%d-%H%M%S}",
        lambda: time.ctime(),
        lambda: tempfile.mkdtemp(),
        lambda: tempfile.mkdtemp(prefix="agent-"),
        lambda: f"Work in {tempfile.mkdtemp()}, and nowhere else.",
        lambda: f"sqlite:///{tempfile.mkdtemp()}/x.db",
        lambda: tempfile.mkstemp(suffix=".json")[1],
        lambda: f"{datetime.now():%m%d_%H%M%S}",
        lambda: f"{datetime.now():%Y-%m-%d at %H:%M:%S}",
    ],
)
def test_an_id_that_was_drawn_and_a_time_in_a_text_are_of_this_start(make) -> None:
    first = make()
    time.sleep(1.1)
    assert without_start(first) == without_start(make())


@pytest.mark.parametrize(
    "text",
    [
        "Answer at 12:30:00.",
        "You are A.",
        "d41d8cd98f00b204e9800998ecf8427e",
        "2024-02-29 12:00:00",
        "/tmp",
        "4111111111111111",
        f"{datetime.now() - timedelta(days=30):%Y-%m-%d %H:%M:%S}",
    ],
    ids=["hour", "prompt", "md5", "date", "folder", "number", "a month ago"],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert without_start(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "{now}: be brief.",
        "Today is {now}. {long}",
        "{folder}/easy.json",
        "Look into {folder}, then answer.",
    ],
)
def test_the_rest_of_such_a_text_counts(text: str) -> None:
    of_start = {"now": time.ctime(), "folder": tempfile.mkdtemp(), "long": "Think. " * 500}
    shown = text.format(**of_start)
    assert without_start(shown) != shown
    assert without_start(shown) != without_start(shown.replace(".", " for long."))


def test_a_folder_of_the_users_own_is_no_temporary_one(tmp_path: Path) -> None:
    open_to_all = Path(tempfile.mkdtemp(prefix="data-"))
    open_to_all.chmod(0o755)
    for folder in ("/home/me/tmp", "/tmp/run-abcd1234", str(tmp_path), str(open_to_all)):
        assert without_start(folder) == folder
    with tempfile.NamedTemporaryFile(prefix="data-") as file:
        assert without_start(file.name) == f"{tempfile.gettempdir()}/data-…"
