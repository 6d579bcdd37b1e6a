"""A SQL agent: it answers questions by queries that can read the database, and nothing else.

    holdfast run examples/sql_agent.py --tasks examples/sql_agent.jsonl --samples 4 --policy URL

The embedded engine's small model knows no SQL: use a model of yours.
"""

import sqlite3
from contextlib import closing

import holdfast

DATA = """
CREATE TABLE items(name TEXT PRIMARY KEY, price INTEGER);
CREATE TABLE sales(day INTEGER, item TEXT REFERENCES items(name), number INTEGER);
INSERT INTO items VALUES ('rope', 12), ('anchor', 95), ('lantern', 30);
INSERT INTO sales VALUES (1, 'rope', 4), (1, 'lantern', 2), (2, 'anchor', 1), (3, 'rope', 10);
"""
SYSTEM = f"Answer with a number. Query this SQLite database:\n{DATA.partition('INSERT')[0]}"
MOST_ROWS, MOST_STEPS = 50, 1_000_000
score = holdfast.scorers.Numeric(tolerance=0.01)


@holdfast.tool(contract="idempotent")
def query(sql: str) -> list[list[object]]:
    """Runs one SELECT statement, and returns its first 50 rows."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(DATA + "PRAGMA query_only = ON;")
        # A recursive query may never end: after so many steps, it is interrupted.
        database.set_progress_handler(lambda: 1, MOST_STEPS)
        try:
            return [list(row) for row in database.execute(sql).fetchmany(MOST_ROWS)]
        except sqlite3.Error as error:
            raise holdfast.ToolSaysNo(f"error: {error}") from None


solve = holdfast.AgentRolloutProcessor([query], system_prompt=SYSTEM, max_turns=6, max_tokens=1000)
