"""The folder of a model, and which files it must have. Imports nothing heavy."""

from pathlib import Path

from holdfast.policy.rendering.tokenizer import download, is_hub_name
from holdfast.records.errors import UsageError

TINY = Path(__file__).parents[1] / "tiny"
"""The model that is served if none is named."""
FETCHED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""What of a repository on the hub is downloaded: neither code nor pickles."""


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model that is named by it, by its name on the hub (`ORG/NAME`, downloaded
    unless there is such a folder), or not at all. Blocks while it downloads. Raises `UsageError`
    where the hub does not give it."""
    if not model:
        return TINY
    if isinstance(model, Path) or Path(model).exists() or not is_hub_name(model):
        return Path(model)
    fetch = f"`hf download {model} --local-dir DIR` makes one where there is a network"
    return download(model, FETCHED, instead=f"give a folder: {fetch}")


def check(path: Path) -> None:
    """Raises `UsageError` for a folder that cannot be a model's."""
    if not (path / "config.json").is_file():
        raise UsageError(f"{path} is no model folder: it has no config.json")
    if not any(path.glob("*.safetensors")):
        raise UsageError(
            f"{path} has no *.safetensors; other formats can run code when they are read, save the "
            "model with save_pretrained"
        )
    if not (path / "tokenizer.json").is_file():
        raise UsageError(f"{path} has no tokenizer.json; save its tokenizer as a fast one")
