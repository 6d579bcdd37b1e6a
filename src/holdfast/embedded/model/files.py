"""The folder of a model, and the files that it must have. Imports no heavy libraries."""

from pathlib import Path

from holdfast.policy.rendering.tokenizer import download, is_hub_name
from holdfast.records.errors import UsageError

TINY = Path(__file__).parents[1] / "tiny"
"""The model that is served if no model is named."""
FETCHED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""The files that are downloaded from a repository on the hub: neither code nor pickles."""


def model_folder(model: str | Path | None) -> Path:
    """Returns the folder of a model. `model` is a folder, a name on the hub (`ORG/NAME`, downloaded
    unless there is such a folder), or None for the tiny model. Blocks during the download. Raises
    `UsageError` if the hub does not give the model."""
    if not model:
        return TINY
    if isinstance(model, Path) or Path(model).exists() or not is_hub_name(model):
        return Path(model)
    fetch = f"`hf download {model} --local-dir DIR` makes one where there is a network"
    return download(model, FETCHED, instead=f"give a folder: {fetch}")


def check(path: Path) -> None:
    """Raises `UsageError` if the folder cannot be a model's."""
    if not (path / "config.json").is_file():
        raise UsageError(f"{path} is not a model folder: it has no config.json")
    if not any(path.glob("*.safetensors")):
        raise UsageError(
            f"{path} has no *.safetensors; other formats can run code when they are read, save the "
            "model with save_pretrained"
        )
    if not (path / "tokenizer.json").is_file():
        raise UsageError(f"{path} has no tokenizer.json; save its tokenizer as a fast one")
