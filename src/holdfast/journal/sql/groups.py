"""Stores counts that follow from a group's trajectories, so that readers need not count.

A group is settled when its last member is settled. Its place in the order of settling is the place
of that member. `task_groups` has one row per task, and `totals` has one row per run. Code that
changes whether a trajectory is settled, held or failed calls `recount` in the same transaction. No
other code writes these numbers.
"""

from collections.abc import Collection, Mapping

from holdfast.journal.sql.store import Row, Store, values_of

COUNTED = """SELECT run, task, count(*) AS members, count(*) - count(settled) AS open,
        count(*) FILTER (WHERE settled IS NULL AND owner IS NOT NULL) AS held,
        count(*) FILTER (WHERE settled IS NOT NULL AND status = 4) AS failed,
        CASE WHEN count(*) = count(settled) THEN max(settled) END AS settled
    FROM trajectories"""
"""The beginning of a query that counts trajectories for the columns of `task_groups`. `WHERE` and
`GROUP BY` have to follow."""
AT_ONCE = 1000
_RECOUNT = f"""UPDATE task_groups SET members = f.members, open = f.open, held = f.held,
        failed = f.failed, settled = f.settled
    FROM ({COUNTED} WHERE run = :run AND task = ANY(:tasks) GROUP BY run, task) f
    WHERE task_groups.run = :run AND task_groups.task = f.task
        AND task_groups.task = ANY(:tasks)
    RETURNING task_groups.task, task_groups.current, task_groups.members, task_groups.open,
        task_groups.failed, task_groups.settled"""  # noqa: S608 - ours
_BEFORE = """SELECT task, current, members, open, failed, settled FROM task_groups
    WHERE run = :run AND task = ANY(:tasks) ORDER BY task FOR UPDATE"""

# A settling transaction holds this row until it commits. So places become visible in their order,
# and no consumer skips one.
_TAKE_PLACES = "UPDATE counters SET value = value + :more WHERE name = 'settled'"
_GIVE_PLACES = """UPDATE trajectories SET settled = c.value - :more + each.number, owner = NULL
    FROM EACH(:ids) JOIN counters c ON c.name = 'settled' WHERE trajectories.id = each.value
    RETURNING run, task"""


def recount(store: Store, run: int, tasks: Collection[int]) -> None:
    """Counts the members of these groups again and stores the counts. Holds the groups' locks
    during the count. If several transactions count the same groups, the last of them therefore sees
    the changes of the earlier ones."""
    ordinals = sorted(set(tasks))
    # In pieces: a server without statistics of the tables may compare each group with each.
    for at in range(0, len(ordinals), AT_ONCE):
        _recount(store, run, ordinals[at : at + AT_ONCE])


def _recount(store: Store, run: int, ordinals: list[int]) -> None:
    rows, after = store.together(_BEFORE, _RECOUNT, run=run, tasks=ordinals)
    before = {row[0]: row for row in rows}
    changes = [_change(before[row[0]], row) for row in after if row[1]]
    planned, settled, failed = (sum(column) for column in zip((0, 0, 0), *changes, strict=True))
    is_over = (planned or settled or failed) and _add(store, run, planned, settled, failed)
    if any(row[5] is not None and row[5] != before[row[0]][5] for row in after):
        store.notify(run, *(("ready", "work") if is_over else ("ready",)))


def _change(before: Row, after: Row) -> tuple[int, int, int]:
    """Returns by how much the run's numbers of trajectories, settled trajectories and failed
    trajectories grew."""
    _, _, members, still_open, failed, _ = after
    _, _, had_members, had_open, had_failed, _ = before
    return (
        members - had_members,
        (members - still_open) - (had_members - had_open),
        failed - had_failed,
    )


def _add(store: Store, run: int, planned: int, settled: int, failed: int) -> bool:
    """Adds to the run's totals. Returns whether all planned trajectories are settled now."""
    row = store.row(
        "UPDATE totals SET planned = planned + :planned, settled = settled + :settled, "
        "failed = failed + :failed WHERE run = :run RETURNING settled >= planned",
        run=run,
        planned=planned,
        settled=settled,
        failed=failed,
    )
    return row is not None and bool(row[0])


def recount_totals(store: Store, run: int) -> None:
    """Recomputes the run's totals after the set of its current tasks changed."""
    store.run(
        "UPDATE totals SET (planned, settled, failed) = (SELECT coalesce(sum(members), 0), "
        "coalesce(sum(members - open), 0), coalesce(sum(failed), 0) "
        "FROM task_groups WHERE run = :run AND current) WHERE run = :run",
        run=run,
    )


def settle(
    store: Store, trajectories: Mapping[int, bytes | None], *, restated: Collection[int] = ()
) -> None:
    """Settles trajectories in the order of the mapping `trajectories`, which has the encoded
    summary of each. Each trajectory gets the next place in the order of settling.

    `restated` names trajectories that were settled before and have another status now.
    """
    touched: list[Row] = []
    if trajectories:
        ids = list(trajectories)
        _, touched = store.together(_TAKE_PLACES, _GIVE_PLACES, ids=ids, more=len(ids))
        store.run_many(
            "UPDATE trajectories SET summary = :summary WHERE id = :id",
            [{"id": each, "summary": body} for each, body in trajectories.items() if body],
        )
    if restated:
        touched += store.rows(
            "SELECT run, task FROM trajectories WHERE id = ANY(:ids)", ids=list(restated)
        )
    for run in sorted(set(values_of(touched))):
        recount(store, run, [task for of_run, task in touched if of_run == run])


def reopen(store: Store, run: int, tasks: Collection[int]) -> None:
    """Notes that these groups have open members again, and withdraws their dismissals by the group
    policy. Consumers look at these groups again later."""
    ordinals = sorted(set(tasks))
    if not ordinals:
        return
    store.run(
        "DELETE FROM deliveries WHERE run = :run AND task = ANY(:tasks) AND state = 3",
        run=run,
        tasks=ordinals,
    )
    recount(store, run, ordinals)
