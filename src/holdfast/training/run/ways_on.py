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


def train_on(model: Path, learning_rate: object, *, asked: object = None) -> str:
    """What goes on with the weights alone. The rate is named: that by default depends on which
    model is given. `asked`: the one that was given now, where that is refused."""
    rate = f"{learning_rate}"
    if asked not in (None, learning_rate):
        rate = f"{asked}, or {learning_rate} as before"
    words = f"--model {shlex.quote(str(model))} --learning-rate {rate}"
    return f"train on from its model under another name ({words}, another --run and --out)"
