"""The columns of a data set, for the tasks that a page shows."""

from msgspec import structs

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.view.reading.columns import Columns
from support.records import make_tasks, spec


async def test_another_selection_of_equally_many_tasks_is_read_anew():
    tasks = [
        structs.replace(task, metadata={"level": number})
        for number, task in enumerate(make_tasks("a", "b", "c", "d"))
    ]
    columns, results = Columns(), []
    async with MemoryJournal() as journal:
        run = await journal.create_run(spec(samples=1), tasks)
        for ordinals in ([0, 1], [2, 3], [2, 3]):
            await columns.read(journal, run, ordinals)
            results.append(columns.by_name)
    first, second, again = results
    assert first == {"level": {0: "0", 1: "1"}}
    assert second == {"level": {2: "2", 3: "3"}}
    assert again is second, "the same tasks are not read again"
