"""What is advised where a training cannot go on as it is: words that work as they are printed."""

import shlex
from pathlib import Path

from holdfast.engine.options import JOURNAL
from holdfast.journal.journal import Journal


def command_for(verb: str, run: str, journal: Journal) -> str:
    """`holdfast VERB RUN`, with the journal that it has to be given."""
    server = getattr(journal, "address", None)
    name = str(getattr(journal, "path", "") or getattr(server, "name", ""))
    where = f" --journal {shlex.quote(name)}" if name not in ("", JOURNAL.default) else ""
    return f"`holdfast {verb} {shlex.quote(run)}{where}`"


def train_on(model: Path, learning_rate: object) -> str:
    """What goes on with the weights alone. The rate is named: that by default depends on which
    model is given."""
    words = f"--model {shlex.quote(str(model))} --learning-rate {learning_rate}"
    return f"train on from its model under another name ({words}, another --run and --out)"
