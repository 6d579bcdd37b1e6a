"""The URL of a journal: its parts, its switches, and a password that is never shown."""

import pytest

from holdfast.journal import PASSWORDS, adopt_passwords, share_passwords, take_password
from holdfast.journal.postgres import address as module
from holdfast.journal.postgres.address import address_of
from holdfast.records.encoding.redaction import public_address
from holdfast.records.errors import UsageError

SECRET = "s3cret/%"


@pytest.mark.parametrize(
    ("where", "name", "password"),
    [
        ("postgresql://me:s3cret%2F%25@db:5432/x", "postgresql://me@db:5432/x", SECRET),
        ("postgres://me@db/x", "postgres://me@db/x", None),
        ("postgresql:///x?host=/run/pg", "postgresql:///x?host=/run/pg", None),
        ("postgresql://me@/x?host=/a&password=s3cret/%25", "postgresql://me@/x?host=/a", SECRET),
        ("postgresql://me:s3cret/%25@db/x", "postgresql://me@db/x", "refused"),
        ("postgresql://me:a@b@db/x", "postgresql://me@db/x", "a@b"),
        ("postgresql://me:a[s3cret]b@db/x", "postgresql://me@db/x", "a[s3cret]b"),
        ("postgresql://me:[s3cret@/x?host=/a", "postgresql://me@/x?host=/a", "[s3cret"),
    ],
)
def test_a_password_is_parted_from_the_address(where, name, password):
    assert public_address(where) == name
    if password == "refused":
        with pytest.raises(UsageError) as caught:
            address_of(where)
        assert "s3cret" not in str(caught.value)
        return
    address = address_of(where)
    assert (address.name, address.password) == (name, password)
    assert "s3cret" not in f"{address.url} {address!r} {address.name}"


@pytest.mark.parametrize("where", ["me:12345?s3cret@db/main", "me:pw,x?s3cret@db:1/main"])
def test_no_part_of_a_password_with_a_question_mark_is_shown(where):
    shown = public_address(f"postgresql://{where}")
    assert shown == "postgresql://me@…"


def test_a_password_that_is_not_escaped_is_not_shown():
    where = "postgresql://me:s3cret?pw@db:1/x"
    assert "s3cret" not in public_address(where)
    with pytest.raises(UsageError) as caught:
        address_of(where)
    assert "s3cret" not in str(caught.value)
    assert address_of("postgresql://me:s3cret#pw@db/x").password == "s3cret#pw"
    for plain in ("postgresql://db:5432/x?host=/a", "postgresql://[::1]/x"):
        assert public_address(plain) == plain


def test_our_own_parameters_are_not_sent_to_the_server():
    address = address_of("postgresql://db/x?connect_timeout=3&outage=9.5&allow_fsync_off=yes&a=b")
    assert (address.connect_seconds, address.outage_seconds) == (3, 9.5)
    assert address.allow_fsync_off
    assert not address.allow_synchronous_commit_off
    assert address.url == "postgresql://db/x?a=b"


@pytest.mark.parametrize(
    "where",
    [
        "postgresql://db:0x1/x",
        "postgresql://db:99999/x",
        "postgresql://db/x?connect_timeout=soon",
        "postgresql://db/x?allow_fsync_off=1",
        "postgresql://[db/x",
    ],
)
def test_what_is_no_url_is_refused_in_one_line(where):
    with pytest.raises(UsageError) as caught:
        address_of(where)
    assert "\n" not in str(caught.value)


def test_a_password_that_was_taken_reaches_children_but_not_their_children(monkeypatch):
    monkeypatch.setattr(module, "taken_passwords", {})
    monkeypatch.delenv(PASSWORDS, raising=False)
    bare = take_password("postgresql://me:s3cret@db/x")
    assert bare == "postgresql://me@db/x"
    assert address_of(bare).password == "s3cret"
    share_passwords()
    module.taken_passwords.clear()
    assert address_of(bare).password is None
    adopt_passwords()
    assert address_of(bare).password == "s3cret"
    monkeypatch.delenv(PASSWORDS, raising=False)
    assert PASSWORDS not in module.os.environ


def test_a_file_keeps_its_name():
    assert take_password("runs:me@here.db") == "runs:me@here.db"
