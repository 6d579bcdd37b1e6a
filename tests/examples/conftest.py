"""A browser of a test's own."""

import tempfile
from collections.abc import Iterator

import pytest

from support.examples.studio import Browsers, drawings


@pytest.fixture
def browsers(tmp_path, monkeypatch) -> Iterator[Browsers]:
    # A driver that is killed leaves its profile. The path is short: Chromium has sockets in there.
    with tempfile.TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True) as short:
        monkeypatch.setenv("TMPDIR", short)
        result = Browsers(tmp_path)
        monkeypatch.setattr(drawings, "CHROMIUM", str(result.script))
        yield result
