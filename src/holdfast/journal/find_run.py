"""The former place of `run_named`, for code that still names it."""

from holdfast.journal.sql.find_run import run_named

__all__ = ["run_named"]
