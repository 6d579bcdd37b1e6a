"""The command that starts vLLM: what training needs, and what its version knows."""

from pathlib import Path

import pytest
from msgspec import structs

from holdfast.embedded.arguments import ServeSettings, VllmSettings
from holdfast.records.errors import UsageError
from holdfast.vllm_server.command import command_of, environment_of, package_folder, split_options
from holdfast.vllm_server.installation import Installation


def installation(folder: Path, version: str = "0.32.0", **more: bool) -> Installation:
    arguments = folder / "entrypoints" / "launchers" / "cli_args.py"
    arguments.parent.mkdir(parents=True, exist_ok=True)
    known = "enable_scale_out: bool\n" if version >= "0.30" else ""
    arguments.write_text(f"middleware: list[str]\n{known}")
    route = '@router.post("/update_weight_version")\n' if version >= "0.28" else ""
    (folder / "entrypoints" / "api_router.py").write_text(route)
    return Installation("python", version, folder, **more)


def command(vllm: Installation, **settings: object) -> str:
    chosen = ServeSettings(vllm=VllmSettings(**settings))  # type: ignore[arg-type]
    return " ".join(command_of(vllm, chosen, model=Path("/m"), name="policy", port=9))


def test_what_training_needs_is_always_on(tmp_path: Path) -> None:
    arguments = command(installation(tmp_path))
    for part in (
        "--model /m --served-model-name policy --host 127.0.0.1 --port 9",
        "--logprobs-mode processed_logprobs",
        "--enable-scale-out",
        "--worker-extension-cls holdfast.weights.vllm_worker.WeightWorker",
        '--weight-transfer-config {"backend": "holdfast"}',
    ):
        assert part in arguments
    assert "--enable-lora" not in arguments
    assert "--gpu-memory-utilization" not in arguments


def test_a_switch_that_a_version_does_not_know_is_left_out(tmp_path: Path) -> None:
    """0.26 and 0.28 end with "unrecognized arguments"."""
    assert "--enable-scale-out" not in command(installation(tmp_path, "0.28.0"))


def test_a_version_without_the_route_for_versions_gets_ours_behind_the_token(
    tmp_path: Path,
) -> None:
    own, guard = "version_route.VersionRoute", "access.TokenGuard"
    assert own not in command(installation(tmp_path, "0.28.0"))
    old = command(installation(tmp_path, "0.26.0"))
    # vLLM wraps them in this order, so the last one sees a request first.
    assert 0 < old.index(own) < old.index(guard)


def test_memory_and_type_and_adapters_are_passed_on(tmp_path: Path) -> None:
    arguments = command(installation(tmp_path), memory=0.45, dtype="bfloat16", lora_rank=16)
    assert "--gpu-memory-utilization 0.45" in arguments
    assert "--dtype bfloat16" in arguments
    assert "--enable-lora --max-lora-rank 16" in arguments


def test_on_a_cpu_there_is_no_share_of_a_gpu_and_seeded_requests_work(tmp_path: Path) -> None:
    arguments = command(installation(tmp_path, is_cpu=True), memory=0.45)
    assert "--gpu-memory-utilization" not in arguments
    assert "--max-num-batched-tokens 32768" in arguments


def test_the_users_own_options_come_last(tmp_path: Path) -> None:
    arguments = command(installation(tmp_path, is_cpu=True), options="--max-num-batched-tokens 64")
    assert arguments.endswith("--max-num-batched-tokens 32768 --max-num-batched-tokens 64")
    with pytest.raises(UsageError, match="--engine-options"):
        split_options("--name 'open")


def test_the_words_of_serve_give_the_same_settings() -> None:
    import argparse

    from holdfast.embedded import arguments

    parser = argparse.ArgumentParser()
    arguments.add_to(parser)
    full = VllmSettings(
        python="/p", memory=0.45, dtype="float32", lora_rank=8, options="--enforce-eager -x 1"
    )
    for settings in (full, VllmSettings(), structs.replace(full, options="")):
        assert arguments.settings(parser.parse_args(list(settings.words()))).vllm == settings
    assert arguments.settings(parser.parse_args([])).vllm is None


def test_the_users_environment_wins_but_for_what_training_needs(tmp_path: Path) -> None:
    mine = {"VLLM_CPU_KVCACHE_SPACE": "7", "VLLM_SERVER_DEV_MODE": "0", "PYTHONPATH": "/mine"}
    vllm = installation(tmp_path, is_cpu=True)
    settings = ServeSettings(api_key="secret", vllm=VllmSettings(lora_rank=8))
    env = environment_of(vllm, settings, place=tmp_path, token="t", environment=mine)
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert env["VLLM_API_KEY"] == "secret"
    assert env["PYTHONPATH"].endswith(":/mine")


def test_vllms_python_gets_this_package_and_nothing_that_lies_beside_it(tmp_path: Path) -> None:
    folder = package_folder(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["holdfast"]
    assert (folder / "holdfast" / "weights" / "vllm_worker.py").is_file()
    assert package_folder(tmp_path) == folder
