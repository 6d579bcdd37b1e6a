"""What reaches the terminal cannot do harm."""

import pytest

from holdfast.cli.terminal.text import notify


@pytest.mark.parametrize("code", [401, 404, 503])
def test_escape_sequences_in_an_engines_text_are_shown_and_not_obeyed(capsys, code):
    notify(f"the engine answered {code}: \x1b]0;owned\x07\x1b[2J\r\x9b31m gone\nnext")
    line = capsys.readouterr().err
    assert line.endswith("next\n")
    assert all(char.isprintable() for char in line[:-1])
    assert "\\x1b]0;owned\\x07" in line
