"""Models by their provider's name, the same for runs, judges and evaluations."""

import pytest

from holdfast.engine.arguments import address_of, is_hosted
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.providers import (
    PROVIDERS,
    base_url,
    key_of,
    meant_provider,
    names_of,
    provider_of,
    unknown_provider,
)
from holdfast.records.errors import UsageError


@pytest.mark.parametrize("name", ["openai", "anthropic", "fireworks", "openrouter"])
def test_a_missing_key_is_named_by_its_variable(name: str) -> None:
    with pytest.raises(UsageError, match=PROVIDERS[name].key):
        key_of(f"{name}/model", {}, instead="…")
    assert key_of(f"{name}/model", {PROVIDERS[name].key: "k"}, instead="…") == "k"


@pytest.mark.parametrize("model", ["gpt-4o", "openai/", "nobody/model", "", None])
def test_other_names_have_no_provider(model: str | None) -> None:
    assert provider_of(model) is None


def test_a_model_behind_two_names_keeps_the_second() -> None:
    assert names_of("openrouter/meta/llama")[1] == "meta/llama"


def test_a_folder_of_that_name_is_a_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hosted("openai/gpt-4o")
    (tmp_path / "openai" / "gpt-4o").mkdir(parents=True)
    assert not is_hosted("openai/gpt-4o")


@pytest.mark.parametrize("named", [{"policy": "openai/m"}, {"policy": None, "model": "openai/m"}])
def test_python_takes_it_as_policy_or_model(named, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    address = address_of(named.pop("policy"), **named)
    assert address.urls == ("https://api.openai.com",)
    assert address.models == ("openai/m", "m")
    assert address.api_key == "secret-key"
    assert "secret-key" not in repr(address)


def test_a_key_goes_before_the_variable(monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert address_of("openai/m", api_key="mine").api_key == "mine"


def endpoint(url: str) -> Endpoint:
    return EnginePolicy(url, "m", api_key="k").endpoints[0]


def test_anthropic_gets_its_own_headers_and_nobody_else_does() -> None:
    assert endpoint("https://api.anthropic.com")._headers()["x-api-key"] == "k"
    for url in ("https://api.openai.com", "http://127.0.0.1:1/api.anthropic.com"):
        assert endpoint(url)._headers() == {"Authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("openay/gpt-4o", "openai/gpt-4o"),
        ("Anthropic/claude", "anthropic/claude"),
        ("openai", "openai/NAME"),
        ("openai/", "openai/NAME"),
    ],
)
def test_a_misspelled_provider_is_said_with_the_one_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"; is '{meant}' meant"):
        base_url(name)
    with pytest.raises(
        UsageError, match=f"not a folder, and no provider's model; is '{meant}' meant"
    ):
        address_of(None, model=name)


@pytest.mark.parametrize("name", ["localhost:8000", "127.0.0.1", "models/mine", "acme/m-1"])
def test_what_resembles_none_is_left_alone(name: str) -> None:
    assert meant_provider(name) == ""
    assert address_of(None, model=name).folder == name


def test_a_provider_that_is_not_known_is_said_to_be_none() -> None:
    assert "no provider is called 'nosuch'" in unknown_provider("nosuch/model")
    for address in ("localhost/8000", "127.0.0.1:8000/v1", "host", "./folder"):
        assert unknown_provider(address) == ""
