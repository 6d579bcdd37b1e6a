"""Which engine a setting is sampled from, and what a session pays that has no evaluations."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.connect import EngineAddress
from holdfast.evaluation import EvaluationRow, evaluation_test
from holdfast.evaluation.rows.completion_params import Setting, ids_of, setting_of
from holdfast.evaluation.running.connect import find_address, key_remedy
from holdfast.policy.providers import names_of
from holdfast.records.errors import PolicyRefused, UsageError
from holdfast.testing import FakeEngine
from support.evaluation.evaluation_project import EvaluationProject
from support.policy.canned_server import Answer, Canned


def address_for(
    model: str | None = None,
    *,
    urls: tuple[str, ...] = (),
    base_url: str | None = None,
    api_key: str | None = None,
    **environment: str,
) -> EngineAddress | None:
    setting = Setting(model=model, base_url=base_url, api_key=api_key)
    return find_address(setting, urls, environment)


def where(address: EngineAddress | None) -> tuple[tuple[str, ...], str | None]:
    assert address is not None
    return address.urls, address.api_key


def test_who_names_the_engine_is_asked_in_this_order() -> None:
    everyone = {"HOLDFAST_POLICY": "http://p", "OPENAI_API_KEY": "o", "HOLDFAST_API_KEY": "h"}
    model, own = "openai/gpt-4o", "http://own"
    flag = address_for(model, urls=("http://a", "http://b"), base_url=own, **everyone)
    assert where(flag) == (("http://a", "http://b"), "h")
    assert where(address_for(model, base_url=own, **everyone)) == (("http://own",), "h")
    assert where(address_for(model, **everyone)) == (("https://api.openai.com",), "o")
    assert where(address_for("gpt-4o", **everyone)) == (("http://p",), "h")
    assert where(address_for("m", HOLDFAST_POLICY="http://a http://b")) == (
        ("http://a", "http://b"),
        None,
    )
    assert address_for("m") is None
    assert address_for() is None
    assert where(address_for(model, api_key="mine", **everyone)) == (
        ("https://api.openai.com",),
        "mine",
    )


def test_a_provider_wants_its_key_and_its_key_goes_nowhere_else() -> None:
    with pytest.raises(UsageError, match=r"wants a key: set FIREWORKS_API_KEY"):
        address_for("fireworks_ai/accounts/fireworks/models/k2", OPENAI_API_KEY="o")
    assert where(address_for("openai/m", base_url="http://own", OPENAI_API_KEY="o"))[1] is None
    assert "secret" not in repr(address_for("openai/m", OPENAI_API_KEY="secret"))


def test_an_engine_may_call_a_model_with_or_without_its_prefix() -> None:
    assert names_of("openai/gpt-4o") == ("openai/gpt-4o", "gpt-4o")
    assert names_of("gpt-4o") == ("gpt-4o",)


def test_a_settings_own_address_is_used(project: EvaluationProject) -> None:
    project.write(
        f"""
        @evaluation_test(
            dataset=ROWS,
            completion_params={{"model": "openai/fake", "base_url": "{project.engine.url}/v1"}},
        )
        def test_it(row):
            return 1.0
        """
    )
    project.run(policy=False).assert_outcomes(passed=1)
    assert project.only()["model"] == "fake"
    assert project.engine.stats().requests == 4


def test_several_replicas_share_the_work(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, samples=4, max_concurrent_rollouts=16)
        def test_it(row):
            return 1.0
        """
    )
    with FakeEngine(delay=0.05) as other:
        project.run("--holdfast-policy", other.url).assert_outcomes(passed=1)
        # Requests of one token compare the replicas.
        both = [
            sum(call.max_tokens > 1 for call in engine.calls())
            for engine in (project.engine, other)
        ]
    assert sum(both) == 16
    assert min(both) > 0


def test_what_is_served_is_told_before_anything_is_done(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, completion_params={"model": "openai/gpt-4o"})
        def test_it(row):
            return 1.0
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*does not serve model 'openai/gpt-4o'; it serves: fake.*"])
    result = project.run("--holdfast-policy", "http://127.0.0.1:9", policy=False)
    result.stdout.fnmatch_lines(["*EndpointDown: the policy at*does not answer*"])
    result = project.run(policy=False)
    result.stdout.fnmatch_lines(["*wants a key: set OPENAI_API_KEY*--holdfast-policy URL*"])
    assert project.engine.stats().requests == 0
    assert not project.journal.exists() or project.runs() == {}


def test_a_providers_model_is_named_as_for_a_run(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return 1.0
        """
    )
    result = project.run("--holdfast-policy", "openai/gpt-4o", policy=False)
    result.stdout.fnmatch_lines(["*model 'openai/gpt-4o'*wants a key: set OPENAI_API_KEY*"])


def test_one_embedded_engine_serves_all_evaluations_of_a_session(
    project: EvaluationProject,
) -> None:
    pytest.importorskip("torch")
    for name in ("test_a.py", "test_b.py"):
        project.write(
            """
            @evaluation_test(
                dataset=[{"prompt": "What is 1 + 1?"}], completion_params={"max_tokens": 4}
            )
            def test_it(row):
                return bool(row.last_assistant_message().content)
            """,
            name,
        )
    result = project.run(policy=False)
    result.assert_outcomes(passed=2)
    occurrences = result.stderr.str().count("no policy is named: starting the embedded engine")
    assert occurrences == 1, result.stderr.str()


HEAVY = ("aiohttp", "pydantic", "sqlite3", "msgspec", "asyncio", "rich")


def test_a_session_without_evaluations_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        "    ours = sorted(name for name in sys.modules if name.startswith('holdfast'))\n"
        f"    print('heavy', [name for name in {HEAVY} if name in sys.modules])\n"
        "    print('ours', ours)\n"
    )
    out = collected(tmp_path, "-p", "holdfast.evaluation.plugin", "-s")
    bare = collected(tmp_path, "-s")
    assert "heavy []" in bare
    assert "heavy []" in out
    assert (
        "ours ['holdfast', 'holdfast.engine', 'holdfast.engine.option_kinds', "
        "'holdfast.engine.options', 'holdfast.evaluation', "
        "'holdfast.evaluation.definition', 'holdfast.evaluation.definition.flags', "
        "'holdfast.evaluation.plugin', 'holdfast.lazy_names', 'holdfast.records', "
        "'holdfast.records.errors', 'holdfast.records.exit_codes']"
    ) in out


def collected(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments],
        cwd=folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_password_in_an_address_is_shown_nowhere() -> None:
    address = "http://user:hunter2hunter2@127.0.0.1:8000"
    settings = [setting_of({"base_url": address}), setting_of({"base_url": "http://127.0.0.1:9"})]
    assert settings[0].base_url == address
    assert "hunter2" not in f"{settings!r} {ids_of(settings)} {settings[0].params}"


def test_a_row_with_an_image_is_asked_and_judged_with_it(project: EvaluationProject) -> None:
    project.write(
        """
        IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        SAID = [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, IMAGE]}]

        @evaluation_test(dataset=[{"messages": SAID}])
        def test_it(row):
            content = row.messages[0].content
            return content[1]["image_url"] == IMAGE["image_url"] and row.messages[0].text != ""
        """
    )
    with FakeEngine(dialect="chat", images=True) as engine:
        project.run("--holdfast-policy", engine.url, policy=False).assert_outcomes(passed=1)
        assert [call.images for call in engine.calls()] == [("data:image/png;base64,AAAA",)]
    assert project.only()["agg_score"] == 1.0


def test_an_engine_that_takes_no_key_is_told_with_the_key_that_it_was_sent() -> None:
    def remedy(
        model: str = "m",
        *,
        base_url: str | None = "http://own",
        api_key: str | None = None,
        **environment: str,
    ) -> str:
        setting = Setting(model=model, base_url=base_url, api_key=api_key)
        return key_remedy(setting, (), environment)

    assert "that of api_key in the completion_params" in remedy(
        api_key="mine", HOLDFAST_API_KEY="h"
    )
    assert "that of HOLDFAST_API_KEY" in remedy(HOLDFAST_API_KEY="h")
    assert "that of OPENAI_API_KEY" in remedy("openai/m", base_url=None, OPENAI_API_KEY="o")
    assert remedy().startswith("it was sent no key: put it into HOLDFAST_API_KEY, or into the")


def test_a_setting_whose_key_is_not_taken_says_so_before_anything_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)

    @evaluation_test(
        dataset=[{"prompt": "a"}], completion_params={"model": "m", "api_key": "the-wrong-key"}
    )
    def judged(row: EvaluationRow) -> float:
        return 1.0

    async def main() -> None:
        async with Canned() as server:
            server.always("/v1/models", Answer(401))
            await judged.evaluate_async(policy=server.url, journal="memory:")  # type: ignore[attr-defined]

    with pytest.raises(PolicyRefused, match="that of api_key in the completion_params") as caught:
        asyncio.run(main())
    assert "--api-key-env" not in str(caught.value)
    assert "the-wrong-key" not in str(caught.value)


def test_an_engine_whose_tokenizer_is_not_here_is_asked_by_chat(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=[{"prompt": "a"}], completion_params={"max_tokens": 9})
        def test_it(row):
            extra = row.execution_metadata.extra
            return row.last_assistant_message().text != "" and "completion_ids" not in extra
        """
    )
    # As a real vLLM: it names its model, and says nothing of a renderer.
    with FakeEngine(describes=False) as engine:
        done = project.run("--holdfast-policy", engine.url, policy=False)
        done.assert_outcomes(passed=1)
        assert [call.path for call in engine.calls()][-1] == "/v1/chat/completions"
    line = (
        "holdfast: the tokenizer of 'fake' is not here: its engine is asked by chat, and rows have "
        "no token ids"
    )
    assert done.stderr.str().count(line) == 1
    assert project.only()["agg_score"] == 1.0


def test_a_thought_in_a_content_is_no_part_of_what_is_judged_unless_it_is_asked_for(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        PARAMS = [{"max_tokens": 99}, {"max_tokens": 99, "separate_reasoning": False}]

        @evaluation_test(dataset=[{"prompt": "a"}], completion_params=PARAMS)
        def test_it(row):
            return "41" in row.last_assistant_message().text
        """
    )
    with FakeEngine(dialect="chat", replies=("<think>41? No.</think>42",)) as engine:
        project.run("--holdfast-policy", engine.url, policy=False)
    assert [outcome["runs"][0]["agg_score"] for outcome in project.outcomes()] == [0.0, 1.0]
