"""The tables that every journal has. Braces mark types whose names differ between databases.

`id` is a number that is never used again, even after its row is deleted. Otherwise a worker that
slept through the deletion could write to another trajectory that got the same number and epoch.
`name` is text that is compared byte by byte.
"""

from pathlib import Path

from holdfast.records.errors import JournalError, JournalNewer

TABLES = (
    """CREATE TABLE runs(
        id {id}, name {name} NOT NULL UNIQUE, spec {bytes} NOT NULL, changes {bytes} NOT NULL,
        created double precision NOT NULL)""",
    # A run is in this table while it accepts tasks.
    """CREATE TABLE streams(run bigint PRIMARY KEY)""",
    """CREATE TABLE totals(
        run bigint PRIMARY KEY, planned bigint NOT NULL DEFAULT 0,
        settled bigint NOT NULL DEFAULT 0, failed bigint NOT NULL DEFAULT 0){half}""",
    """CREATE TABLE tasks(
        run bigint NOT NULL, ordinal integer NOT NULL, id {name} NOT NULL, body {bytes} NOT NULL,
        crc bigint NOT NULL, current boolean NOT NULL DEFAULT true,
        UNIQUE(run, ordinal), UNIQUE(run, id))""",
    # Derived from a group's trajectories: see `groups`.
    """CREATE TABLE task_groups(
        run bigint NOT NULL, task integer NOT NULL, current boolean NOT NULL DEFAULT true,
        members integer NOT NULL DEFAULT 0, open integer NOT NULL DEFAULT 0,
        held integer NOT NULL DEFAULT 0, failed integer NOT NULL DEFAULT 0, settled bigint,
        PRIMARY KEY(run, task)){most}""",
    """CREATE INDEX task_groups_claimable ON {in}task_groups(run, task)
        WHERE open > 0 AND held = 0 AND current""",
    """CREATE INDEX task_groups_settled ON {in}task_groups(run, settled)
        WHERE settled IS NOT NULL""",
    """CREATE TABLE workers(
        id {id}, run bigint NOT NULL, host text NOT NULL, pid bigint NOT NULL, born text NOT NULL,
        namespace text NOT NULL, lease_until double precision NOT NULL, clock text NOT NULL,
        clock_until double precision NOT NULL, lease_seconds double precision NOT NULL)""",
    """CREATE INDEX workers_run ON {in}workers(run)""",
    # `length` is the number of records in the log. An append must begin there.
    """CREATE TABLE trajectories(
        id {id}, run bigint NOT NULL, task integer NOT NULL, sample integer NOT NULL,
        status smallint NOT NULL DEFAULT 0, epoch bigint NOT NULL DEFAULT 0, owner bigint,
        settled bigint, length integer NOT NULL DEFAULT 0{last}, summary {bytes},
        UNIQUE(run, task, sample)){half}""",
    """CREATE INDEX trajectories_owner ON {in}trajectories(owner) WHERE owner IS NOT NULL""",
    """CREATE TABLE cuts(
        position {id}, trajectory bigint NOT NULL, seq integer NOT NULL, epoch bigint NOT NULL,
        crc bigint NOT NULL, body {bytes} NOT NULL, reason text NOT NULL)""",
    """CREATE TABLE blobs(digest {bytes} PRIMARY KEY, body {bytes} NOT NULL)""",
    """CREATE TABLE versions(
        run bigint NOT NULL, ordinal integer NOT NULL, name {name} NOT NULL, step bigint NOT NULL,
        digest text NOT NULL, PRIMARY KEY(run, ordinal), UNIQUE(run, name))""",
    # The weights of each replica: see `replicas`.
    """CREATE TABLE replicas(
        run bigint NOT NULL, replica {name} NOT NULL, number bigint NOT NULL,
        body {bytes} NOT NULL, PRIMARY KEY(run, replica, number))""",
    # The ledger of worlds and their snapshots: see `worlds`. A row outlives its run if something
    # may still exist at the provider.
    """CREATE TABLE worlds(
        id {id}, run bigint NOT NULL, trajectory bigint NOT NULL, epoch bigint NOT NULL,
        name {name} NOT NULL UNIQUE, intent {bytes} NOT NULL, state smallint NOT NULL,
        handle text NOT NULL, created double precision NOT NULL, ended double precision,
        cpu_seconds double precision NOT NULL)""",
    """CREATE INDEX worlds_trajectory ON {in}worlds(trajectory, id)""",
    """CREATE TABLE consumers(
        run bigint NOT NULL, consumer {name} NOT NULL, committed bigint,
        seen bigint NOT NULL DEFAULT 0, epoch bigint NOT NULL, host text NOT NULL,
        pid bigint NOT NULL, born text NOT NULL, namespace text NOT NULL,
        lease_until double precision NOT NULL, clock text NOT NULL,
        clock_until double precision NOT NULL, lease_seconds double precision NOT NULL,
        PRIMARY KEY(run, consumer))""",
    # `settled` is the group's place in the settling order, and `place` its place in the batch.
    """CREATE TABLE deliveries(
        run bigint NOT NULL, task integer NOT NULL, consumer {name} NOT NULL,
        state smallint NOT NULL, settled bigint NOT NULL, step bigint, place integer,
        reason text NOT NULL, PRIMARY KEY(run, task, consumer))""",
    """CREATE INDEX deliveries_step ON {in}deliveries(run, consumer, step)
        WHERE state IN (1, 2)""",
    """CREATE TABLE counters(name text PRIMARY KEY, value bigint NOT NULL){half}""",
    """INSERT INTO counters VALUES ('settled', 0)""",
)

OF_RUN = (
    "deliveries", "consumers", "replicas", "versions", "streams", "task_groups", "totals",
    "workers", "trajectories", "tasks",
)  # fmt: skip
"""The tables whose rows belong to one run."""


# --- which version a journal has, and which one this program knows

BEGIN = "a run that names it begins it"


def refuse_newer(version: int, known: int, name: Path | str) -> None:
    if version > known:
        raise JournalNewer(
            f"journal {name} has version {version}, written by a newer Holdfast; this one reads "
            f"up to {known}. Upgrade Holdfast, or name another journal"
        )


def require_version(version: int, known: int, name: Path | str) -> None:
    """Raises `JournalError` if the journal is empty or has an older version than `known`. Call it
    only for reading, because opening for writing creates a journal or migrates an older one."""
    if version == 0:
        raise JournalError(f"journal {name} is empty: nothing has been recorded in it yet; {BEGIN}")
    if version < known:
        raise JournalError(
            f"journal {name} has version {version}, and this Holdfast reads {known}; a command "
            "that writes, such as holdfast run, brings it forward"
        )
