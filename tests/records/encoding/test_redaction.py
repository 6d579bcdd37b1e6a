"""What is known to be secret, or looks like it, is taken out of texts; words are not."""

import base64

import pytest

from holdfast.records.encoding import redaction
from holdfast.records.encoding.redaction import hide, hide_credentials, hide_variables, redact

CANARY = "canaryQ7x9Zp42mNw"


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch):
    monkeypatch.setattr(redaction, "_hidden", {})


def basic(pair: str) -> str:
    return base64.b64encode(pair.encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Basic {basic(f'me:{CANARY}')}",
        f"authorization=basic {basic(f'me:{CANARY}')}, no",
        f"{{'Authorization': 'Basic {basic(f':{CANARY}')}'}}",
    ],
)
def test_basic_credentials_are_taken_out_whoever_they_belong_to(text):
    assert redaction.REDACTED in redact(text)
    assert not any(basic(f"{user}:{CANARY}") in redact(text) for user in ("me", ""))
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize("text", ["basic training in arithmetic", "a basic understanding", "BASIC"])
def test_the_word_basic_is_no_credential(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        (f"http://me:{CANARY}@engine:8000/v1", f"me:{CANARY}"),
        (f"http://me:{CANARY}%40x@engine", f"me:{CANARY}@x"),
        (f"http://{CANARY}@engine", f"{CANARY}:"),
        ("http://me:pw01@engine", "me:pw01"),
    ],
)
def test_credentials_of_an_address_are_taken_out_as_they_are_sent(url, sent):
    hide_credentials(url)
    for text in (basic(sent), f"got {basic(sent)} for a key", f"who is {sent}?"):
        assert sent not in redact(text)
        assert basic(sent) not in redact(text)


@pytest.mark.parametrize(
    "name",
    ["AGENT_TOKEN", "OPENAI_API_KEY", "apiKey", "PGPASSWORD", "MYSQL_PWD", "GITHUB_PAT", "AUTH",
     "DB_PASS", "SESSION_COOKIE", "AWS_SECRET_ACCESS_KEY", "KEY1", "SERVICE_CREDENTIALS"],
)  # fmt: skip
def test_a_variable_whose_name_says_so_is_secret(name):
    hide_variables({name: "correct-horse"})
    assert redact("it was correct-horse") == "it was [redacted]"


def test_a_value_like_no_word_is_secret_whatever_its_name():
    hide_variables({"SERVICE": CANARY})
    assert redact(f"it was {CANARY}!") == "it was [redacted]!"


@pytest.mark.parametrize(
    ("name", "value"),
    [("MODE", "production"), ("TOKENIZERS_PARALLELISM", "disabled"), ("AUTHOR", "somebody"),
     ("HOME", "/home/agent0123456"), ("PWD", "/tmp/abcdefg"), ("API_KEY", "1"),
     ("N", "1234567890123"), ("MODEL", "gpt-4o-mini-2024-07-18"),
     ("MODEL", "Qwen2.5-0.5B-Instruct"),
     ("GREETING", "hello world number 17")],
)  # fmt: skip
def test_other_variables_are_left(name, value):
    hide_variables({name: value})
    assert redact(f"it was {value}") == f"it was {value}"


def test_a_secret_is_taken_out_as_urls_and_json_write_it_and_line_by_line():
    hide('a"b c/d&e')
    assert redact(r'{"it": "a\"b c/d&e"} ?q=a%22b%20c%2Fd%26e') == (
        '{"it": "[redacted]"} ?q=[redacted]'
    )
    hide("-- BEGIN --\nMIIEpAIBAAKCAQEA\nshort\n")
    assert "MIIEpAIBAAKCAQEA" not in redact("line 2 is MIIEpAIBAAKCAQEA")
    assert redact("in short") == "in short"


def test_of_two_secrets_the_longer_one_is_taken_out_whole():
    hide("abcdef")
    hide("abcdefghi")
    assert redact("abcdefghi abcdef") == "[redacted] [redacted]"


def test_of_a_server_s_address_only_the_password_is_taken_out() -> None:
    assert redact("--journal postgresql://me@db/x") == "--journal postgresql://me@db/x"
    assert redact("postgres://me:pw0rd@db/x") == "postgres://me:[redacted]@db/x"
    assert redact("postgresql://:pw0rd@db/x") == "postgresql://:[redacted]@db/x"


@pytest.mark.parametrize(
    "text",
    [
        "token=abcdef123",
        "{'api_key': 'abcdefghij'}",
        "Authorization: Bearer abcdefghij]",
        "password=[redacted]abcdef]",
        "https://me:secret@host/x?token=abcdef123&x=1",
    ],
)
def test_what_is_redacted_stays_as_it_is(text):
    once = redact(text)
    assert redact(redact(once)) == once
