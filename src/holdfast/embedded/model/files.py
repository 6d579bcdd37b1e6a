"""Which files a model folder must have. Looked at before anything heavy is imported."""

from pathlib import Path

from holdfast.records.errors import UsageError


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
