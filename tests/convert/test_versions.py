"""Weight versions of a run, as converters take them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import convert
from holdfast.records.errors import UsageError
from holdfast.records.samples.version import WeightVersion
from support.convert.samples import sample
from support.records import make_tasks, spec


def test_versions_are_read_by_the_name_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"

    async def publish() -> list[WeightVersion]:
        async with holdfast.open_journal(path) as journal:
            run = await journal.create_run(spec(), make_tasks("a"))
            await journal.publish_version(run, "step-1", step=1, digest="digest")
            return await convert.load_versions(journal, "run")

    (version,) = asyncio.run(publish())
    assert (version.name, version.step) == ("step-1", 1)
    assert asyncio.run(convert.load_versions(path, "run")) == [version]
    with pytest.raises(UsageError, match="there is no run 'first'"):
        asyncio.run(convert.load_versions(path, "first"))


@pytest.mark.parametrize("versions", [None, "x", ["step-1"], {"step-1": 1}, 5], ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda versions: convert.to_verl([sample()], versions=versions),
        lambda versions: convert.to_trl_async([sample()], versions=versions),
        lambda versions: convert.to_agent_loop_output(sample(), versions=versions),
    ],
)
def test_what_is_no_list_of_versions(call: Callable[[object], object], versions: object) -> None:
    with pytest.raises(UsageError, match=r"wants the versions of the run .*load_versions\(…\)"):
        call(versions)
