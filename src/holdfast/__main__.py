"""`python -m holdfast`."""

from holdfast.cli.main import entry

entry()
