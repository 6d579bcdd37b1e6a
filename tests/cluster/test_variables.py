"""Environment variables travel by a list, and no value of a secret is shown."""

from holdfast.cluster import variables

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
    found = variables.traveling(("MY_JUDGE",), environment=HERE)
    assert set(found) == set(HERE) - {"PATH", "AWS_SECRET_ACCESS_KEY", "HOLDFAST_CRASH"}


def test_secrets_travel_and_are_not_shown():
    found = variables.traveling(environment=HERE)
    assert found["HF_TOKEN"] == "hf_secret"
    line = variables.describe(found)
    assert "secret" not in line
    assert "HF_TOKEN=(hidden)" in line
    assert "CUDA_HOME=/cuda" in line
    assert "\n" not in line


def test_a_variable_that_is_named_as_a_secret_is_hidden():
    assert variables.describe({"MODEL": "abc"}, secrets=("MODEL",)) == "MODEL=(hidden)"
    assert variables.describe({}) == "none"
