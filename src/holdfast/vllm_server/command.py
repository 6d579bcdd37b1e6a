"""Builds the command and the environment that start a vLLM for training.

Each of these options is needed for training, or by vLLM on a CPU. The user's own options come last,
so that they override these.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from holdfast.embedded.arguments import ServeSettings, VllmSettings
from holdfast.records.errors import UsageError
from holdfast.vllm_server import start
from holdfast.vllm_server.access import TOKEN
from holdfast.vllm_server.installation import Installation
from holdfast.vllm_server.version_route import ROUTE

MIDDLEWARE = "holdfast.vllm_server.access.TokenGuard"
VERSION_MIDDLEWARE = "holdfast.vllm_server.version_route.VersionRoute"
_WORKER = "holdfast.weights.vllm_worker.WeightWorker"
_TRANSFER = '{"backend": "holdfast"}'
_PACKAGE = Path(__file__).parents[1]
_CPU_OPTIONS = ("--max-num-batched-tokens", "32768")
"""With fewer tokens, a seeded request ends a vLLM on a CPU ("CPU Generator does not use
offset").
"""


def command_of(
    vllm: Installation, settings: ServeSettings, *, model: Path, name: str, port: int
) -> list[str]:
    """Returns vLLM's command line."""
    chosen = settings.vllm or VllmSettings()
    command = [vllm.python, start.__file__, "--model", str(model), "--served-model-name", name]
    command += ["--host", settings.host, "--port", str(port)]
    command += ["--logprobs-mode", "processed_logprobs"]
    if not vllm.has_route(ROUTE):
        command += ["--middleware", VERSION_MIDDLEWARE]
    command += ["--middleware", MIDDLEWARE]  # vLLM asks the last one first.
    if vllm.knows("--enable-scale-out"):  # Older versions have the route without a switch.
        command.append("--enable-scale-out")
    command += ["--worker-extension-cls", _WORKER, "--weight-transfer-config", _TRANSFER]
    if chosen.dtype:
        command += ["--dtype", chosen.dtype]
    if chosen.memory is not None and not vllm.is_cpu:
        command += ["--gpu-memory-utilization", str(chosen.memory)]
    if chosen.lora_rank is not None:
        command += ["--enable-lora", "--max-lora-rank", str(chosen.lora_rank)]
    if settings.max_length is not None:
        command += ["--max-model-len", str(settings.max_length)]
    if settings.log_requests:
        command.append("--enable-log-requests")
    if vllm.is_cpu:
        command += _CPU_OPTIONS
    return command + split_options(chosen.options)


def split_options(text: str) -> list[str]:
    """Splits the text of `--engine-options`. Raises `UsageError`."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--engine-options {text!r} cannot be split into words: {error}"
        ) from error


def environment_of(
    vllm: Installation,
    settings: ServeSettings,
    *,
    place: Path,
    token: str,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Returns the environment variables of vLLM. Variables that the user has set override the
    defaults.

    `place` is the engine's own folder for files that last as long as it runs.
    """
    chosen = settings.vllm or VllmSettings()
    defaults = {"VLLM_NO_USAGE_STATS": "1"}
    if vllm.is_cpu:
        defaults["VLLM_CPU_KVCACHE_SPACE"] = "1"
    if chosen.lora_rank is not None:
        defaults["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if settings.api_key is not None:
        defaults["VLLM_API_KEY"] = settings.api_key
    paths = [str(package_folder(place)), environment.get("PYTHONPATH", "")]
    return {
        **defaults,
        **environment,
        "VLLM_SERVER_DEV_MODE": "1",  # This enables the routes that change weights.
        "VLLM_RPC_BASE_PATH": str(place),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONSAFEPATH": "1",
        TOKEN: token,
        start.PLACE: str(place),
        start.OWNER: start.identity(os.getpid()),
    }


def package_folder(place: Path) -> Path:
    """Makes a folder that contains only a link to this package.

    If `PYTHONPATH` named the package's own parent folder, vLLM's Python would find this process's
    torch and transformers before its own.
    """
    folder = place / "packages"
    folder.mkdir(exist_ok=True)
    link = folder / "holdfast"
    if not link.exists():
        link.symlink_to(_PACKAGE)
    return folder
