"""An option that means nothing without another one is refused, not ignored."""

from argparse import Namespace

import pytest

from holdfast.cli.options.dependent import check_dependent
from holdfast.records.errors import UsageError
from support.cli.shell import CommandLine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", 4), "--workers belongs to --cluster, which is not given"),
        (("--worker-gpus", 1), "--worker-gpus belongs to --cluster"),
        (("--requirements", "r.txt"), "--requirements belongs to --cluster"),
        (("--off-gpu-nodes",), "--off-gpu-nodes belongs to --cluster"),
        (("--score-concurrency=2",), "--score-concurrency belongs to --score-workers"),
    ],
)
def test_of_a_run(shell: CommandLine, arguments, message):
    done = shell.run(*arguments)
    assert done.code == 2
    assert message in done.line
    assert not shell.journal.exists()


def test_of_a_report(shell: CommandLine):
    assert (
        "--max-megabytes belongs to --out"
        in shell.holdfast("report", "r", "--max-megabytes", 4).line
    )


def test_beside_the_other_one_it_is_taken():
    check_dependent(Namespace(command="run", cluster="auto"), {"workers"})
    check_dependent(Namespace(command="train", dynamic=False, loss="dapo"), {"max_draws"})
    check_dependent(Namespace(command="gateway", cluster=None), {"workers"})
    with pytest.raises(UsageError, match="belongs to --dynamic"):
        check_dependent(Namespace(command="train", dynamic=False, loss="grpo"), {"max_draws"})


def test_a_configuration_file_may_have_it_for_others(shell: CommandLine):
    shell.write("holdfast.toml", "[run]\nscore-concurrency = 2\n")
    assert shell.finished_run().code == 0
