"""One batch, one transaction of the server's, and an outcome that is known.

Every transaction moves this writer's row from batch n - 1 to n. So after a lost connection, the row
says whether batch n is in the journal, once the old transaction is over: reading it waits for that.
And a statement that comes too late, out of a network that had swallowed it, finds another number
and does nothing. What is not in the journal is sent again, until a deadline. A row behind what was
acknowledged means that the server has lost commits: then nothing more is written.

All appends that wait are one statement, which is one transaction and one round trip, unless one of
them settles its trajectory; everything else is a transaction of its own, in the order of the calls,
so that nobody holds a lock for somebody else.
"""

import secrets
from collections.abc import Callable

import psycopg

from holdfast import crashpoint
from holdfast.journal.files.witness import Witness
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import ServerAddress, explain, is_outage
from holdfast.journal.postgres.connection import Connect, Link, Outage, ServerConnection
from holdfast.journal.postgres.store import NOW, PostgresStore
from holdfast.journal.sql.store import Row
from holdfast.journal.sql.writer import Append, Operation, WriteCall, write_appends
from holdfast.records.errors import HoldfastError, LostCommits

_NEXT = f"""{{begin}}; UPDATE holdfast.writers SET batch = {{number}}, at = now()
    WHERE name = '{{name}}' AND batch = {{number}} - 1 RETURNING {NOW}"""  # noqa: S608 - ours
Wake = Callable[[], None]
Attempt = Callable[[PostgresStore], None]


class PostgresCommitter:
    """See `Committer`."""

    mixes_calls = False
    seconds = 1.0  # So long that all share a commit.

    def __init__(self, address: ServerAddress, connect: Connect, outage: Outage):
        self._address = address
        self.link = Link(address, connect, self._ready, outage)
        self._witness: Witness | None = None
        self._lost: LostCommits | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Under another name: what is still under way under the old one cannot be taken for what
        follows."""
        self._name = secrets.token_hex(8)
        self._acknowledged = 0
        """The number of the last batch that is known to be in the journal."""
        self._there = 0
        """What the journal had when the connection was made."""
        self._registered = False
        self._close_witness()

    def _close_witness(self) -> None:
        witness, self._witness = self._witness, None
        if witness is not None:
            witness.close()

    def commit(self, batch: list[Operation], wake: Wake) -> None:
        wake()
        try:
            if isinstance(batch[0], WriteCall):
                self._call(batch[0])
            else:
                self._append([each for each in batch if isinstance(each, Append)])
        except HoldfastError as error:
            _fail(batch, error)
        except Exception as error:
            self.link.drop()
            if not isinstance(error, psycopg.Error | OSError):
                raise
            _fail(batch, explain(error, self._address))

    def tidy(self, wake: Wake) -> None: ...

    def give_up(self) -> None:
        self.link.give_up()

    def close(self) -> None:
        """The writer's row stays: commands that come later hold it against this machine's notes."""
        self._close_witness()
        self.link.drop()

    # --- one batch

    def _append(self, batch: list[Append]) -> None:
        rows = sum([append.rows for append in batch])
        settles = any(entry.settled for append in batch for entry in append.entries)

        def write(store: PostgresStore) -> None:
            for append in batch:
                append.error = None
            write_appends(store, batch)

        def write_alone(store: PostgresStore) -> None:
            crashpoint.reach("journal.before_commit", rows)
            store.batch = (self._name, self._acknowledged + 1)
            write(store)
            crashpoint.reach("journal.after_commit", rows)

        self._durably(self._transaction(write, rows) if settles else write_alone, rows)

    def _call(self, call: WriteCall) -> None:
        def run(store: PostgresStore) -> None:
            call.result = call.function(store)

        self._durably(self._transaction(run, 1), 1)

    def _transaction(self, run: Attempt, rows: int) -> Attempt:
        """`run` in a transaction, which moves the writer first, in the round trip that begins it:
        whoever asks what became of it waits for its end."""

        def attempt(store: PostgresStore) -> None:
            connection = store.connection
            try:
                store.moment = self._begin_next(connection)
                run(store)
                crashpoint.reach("journal.before_commit", rows)
                store.commit()
            except Exception as error:
                if not is_outage(error):
                    connection.roll_back()
                raise
            crashpoint.reach("journal.after_commit", rows)

        return attempt

    def _begin_next(self, connection: ServerConnection) -> Row:
        """When it began."""
        query = _NEXT.format(begin=connection.begin, name=self._name, number=self._acknowledged + 1)
        *_, moments = connection.results(query)
        if not moments:
            raise psycopg.OperationalError("another connection has committed the batch")
        return moments[0]

    def _durably(self, attempt: Attempt, rows: int) -> None:
        """Returns when the next batch is in the journal, once, and this machine knows it."""
        if self._lost is not None:
            raise self._lost
        number = self._acknowledged + 1

        def unless_there(connection: ServerConnection) -> None:
            if self._there < number:
                attempt(PostgresStore(connection))

        try:
            self.link.insist(unless_there)
        except HoldfastError as error:
            if isinstance(error, LostCommits):
                self._lost = error
            elif not self.link.is_open:  # What was under way may be in the journal or not.
                self._begin_anew()
            raise
        self._acknowledged = number
        if self._witness is not None:
            self._witness.note(number)
        crashpoint.reach("journal.witnessed", rows)

    def _ready(self, connection: ServerConnection) -> None:
        """What this writer has committed is there; else nothing more is written."""
        schema.prepare(connection, self._address, known={self._name: self._acknowledged})
        if not self._registered:
            connection.execute(
                "INSERT INTO holdfast.writers VALUES (%s, 0, now()) ON CONFLICT DO NOTHING",
                (self._name,),
            )
            connection.execute(
                "DELETE FROM holdfast.writers WHERE at < now() - %s * interval '1 day'",
                (schema.KEPT_DAYS,),
            )
            self._registered = True
            self._witness = schema.open_witness(schema.identity_of(connection), self._name)
        # Waits for a transaction of ours that is still under way on a connection that was lost.
        row = connection.execute(
            "SELECT batch FROM holdfast.writers WHERE name = %s FOR UPDATE", (self._name,)
        ).fetchone()
        self._there = -1 if row is None else int(row[0])


def _fail(batch: list[Operation], error: BaseException) -> None:
    for operation in batch:
        if operation.error is None:
            operation.error = error
