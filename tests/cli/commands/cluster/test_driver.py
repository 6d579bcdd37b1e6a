"""The driver of a cluster: what it prints of the environment, and what it does at ends."""

from argparse import Namespace

import pytest

from holdfast import log_files
from holdfast.cli.commands.cluster.checks import ClusterPlan
from holdfast.cli.commands.cluster.driver import Driver
from holdfast.cli.commands.run import Work
from holdfast.cluster.messages import Place
from support.records import spec


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.setenv(log_files.LOGS, str(tmp_path))
    args = Namespace(
        run="r", journal="postgresql://me@db/x", api_key_env="OWN_KEY", cluster_env=["JUDGE", "PIN"]
    )
    return Driver(args, Work(None), ClusterPlan(None, []))


def test_no_value_that_an_option_names_is_printed(driver, monkeypatch):
    values = {"OWN_KEY": "one-value", "JUDGE": "other-value", "PIN": "0000"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    line = driver._described()
    for name, value in values.items():
        assert f"{name}=(hidden)" in line
        assert value not in line


def test_a_full_disk_here_ends_no_run(driver, capsys):
    driver.log = driver.log.parent / "gone" / "driver.log"
    place = Place("node-1", "id", 1, "3", "2", "0")
    member = Namespace(place=place, log="/logs/worker-1.log", cpu=1.0)
    driver._note_log(Namespace(spec=spec("r")), member, "worker")
    assert "/logs/worker-1.log" in capsys.readouterr().err
