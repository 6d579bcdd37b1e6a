"""Environment variables travel by a list, and no value of a secret is shown."""

import pytest

from holdfast.cluster import variables
from holdfast.records.encoding.redaction import redact

HERE = {
    "PATH": "/bin",
    "PYTHONPATH": "/src",
    "CUDA_HOME": "/cuda",
    "HF_HOME": "/hf",
    "HF_TOKEN": "hf_secret",
    "HOLDFAST_API_KEY": "key-secret",
    "HOLDFAST_LOGS": "/logs",
    "HOLDFAST_CRASH": "here",
    "https_proxy": "http://me:proxy-secret@proxy:3128",
    "MY_JUDGE": "url",
    "PGPASSWORD": "pg-secret",
    "AWS_SECRET_ACCESS_KEY": "aws",
}


def test_only_what_is_on_the_list_or_named_travels():
    results = variables.traveling(("MY_JUDGE",), environment=HERE)
    assert set(results) == set(HERE) - {"PATH", "AWS_SECRET_ACCESS_KEY", "HOLDFAST_CRASH"}


def test_secrets_travel_and_are_not_shown():
    result = variables.traveling(environment=HERE)
    assert result["HF_TOKEN"] == "hf_secret"
    line = variables.describe(result)
    assert "secret" not in line
    assert "HF_TOKEN=(hidden)" in line
    assert "CUDA_HOME=/cuda" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "name", ["GITHUB_PAT", "DB_PASS", "SMTP_AUTH", "SSH_PASSPHRASE", "SESSION_COOKIE"]
)
def test_a_name_says_that_it_is_a_secret(name):
    assert variables.describe({name: "correct-horse"}) == f"{name}=(hidden)"
    variables.hide_secrets({name: f"battery-{name}"})
    assert redact(f"it was battery-{name}") == "it was [redacted]"


def test_what_somebody_named_is_hidden_whatever_its_name():
    assert variables.describe({"MODEL": "abc"}, named=("MODEL",)) == "MODEL=(hidden)"
    assert variables.describe({}, named=("MODEL",)) == "none"
    variables.hide_secrets({"LICENSE": "9f8e7d6c5b4a3f2e1d"}, named=("LICENSE", "NOT_SET"))
    assert redact("it was 9f8e7d6c5b4a3f2e1d") == "it was [redacted]"


@pytest.mark.parametrize("proxy", ["user:s3cret@proxy:3128", "http://user:s3cr@t@proxy:3128"])
def test_a_proxy_is_shown_without_its_password(proxy):
    assert variables.describe({"HTTP_PROXY": proxy}) == "HTTP_PROXY=…@proxy:3128"
