"""Tokenizer has a folder's vocabulary, special tokens and chat template, without transformers.

It reads `tokenizer.json` with the `tokenizers` library, and the JSON and Jinja files beside it. It
never runs code that came with a model. It never imports transformers, because that import takes
seconds where this module takes milliseconds.

Invariant: only text that the model did not sample is encoded.
"""

import hashlib
import importlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from holdfast import extras
from holdfast.off_loop import MIN_THREAD_SIZE
from holdfast.records.errors import UsageError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
)
NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

# A code point that Unicode reserves for internal use. In texts that contain it, it is doubled.
SPLIT = "\ufdd0"
_SPLIT = re.compile(f"(?<!{SPLIT}){SPLIT}(?!{SPLIT})")


def import_extra(module: str, *, needed_by: str) -> Any:
    """Imports a module that only the extra `renderers` installs, when it is first needed."""
    with extras.needed_by(needed_by, extra="renderers"):
        return importlib.import_module(module)


class Tokenizer:
    """The parts of a tokenizer that a renderer needs, in the shape that the `renderers` package
    needs, too."""

    def __init__(self, folder: Path, *, name: str):
        self.name_or_path = name
        self.folder = folder
        self._backend = _backend(folder)
        self.settings = _json(folder / "tokenizer_config.json")
        self.config = _json(folder / "config.json")
        _add_declared_tokens(self._backend, self.settings)
        self.named_tokens = _named_tokens(self.settings, _json(folder / "special_tokens_map.json"))
        self.unk_token_id: int | None = None
        self.unk_token_id = self._id(self.named_tokens.get("unk_token"))
        self.eos_token_id = self._id(self.named_tokens.get("eos_token"))
        self.bos_token_id = self._id(self.named_tokens.get("bos_token"))
        self.pad_token_id = self._id(self.named_tokens.get("pad_token"))
        self.chat_template = _chat_template(folder, self.settings)
        added = self._backend.get_added_tokens_decoder()
        self.all_special_tokens = [token.content for token in added.values() if token.special]
        self.control_tokens: dict[int, str] = {
            identifier: token.content
            for identifier, token in added.items()
            if token.special or _is_markup(token.content)
        }
        """Special tokens and markup, by their ids."""
        self._control = _control_pattern(self.control_tokens.values())
        self.encoded_characters = 0
        """How many characters were encoded so far. Tests measure this number instead of time."""

    # --- text to ids and back

    def encode(self, text: str, **_: object) -> list[int]:
        """Returns the ids of text. A special token in the text becomes one id, unless `quoted`
        split it.

        Adds no tokens at the ends, because a chat template writes its own beginning.
        """
        self.encoded_characters += len(text)
        ids: list[int] = []
        for piece in _SPLIT.split(text) if SPLIT in text else (text,):
            plain = piece.replace(SPLIT * 2, SPLIT)
            ids += self._ids(plain, add_special_tokens=False)
        return ids

    def encode_whole(self, text: str) -> list[int]:
        """Returns the ids of a whole prompt, with the tokens that the tokenizer adds around it, as
        engines do."""
        self.encoded_characters += len(text)
        return self._ids(text)

    def _ids(self, text: str, **options: bool) -> list[int]:
        if len(text) < MIN_THREAD_SIZE:
            ids: list[int] = self._backend.encode(text, **options).ids
        else:
            # Encoding a batch releases the interpreter lock. Encoding a single text does not.
            (encoding,) = self._backend.encode_batch_fast([text], **options)
            ids = encoding.ids
        return ids

    def decode(self, ids: Sequence[int] | int, *_: object, **options: Any) -> str:
        skip = bool(options.get("skip_special_tokens", False))
        tokens = [ids] if isinstance(ids, int) else list(ids)
        if len(tokens) < MIN_THREAD_SIZE:
            text: str = self._backend.decode(tokens, skip_special_tokens=skip)
        else:
            (text,) = self._backend.decode_batch([tokens], skip_special_tokens=skip)
        return text

    def quoted(self, text: str) -> str:
        """Quotes text from outside. A special token that the text spells out is then encoded as
        letters."""
        text = text.replace(SPLIT, SPLIT * 2)
        return self._control.sub(
            lambda token: token[0][0] + SPLIT + self.quoted(token[0][1:]), text
        )

    def control(self, text: str, start: int) -> tuple[int, int] | None:
        """Returns the range of the next special token in the text, from `start` on."""
        match = self._control.search(text, start)
        return match.span() if match else None

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._id(tokens)
        return [self._id(token) for token in tokens]

    def token(self, identifier: int) -> str | None:
        text: str | None = self._backend.id_to_token(identifier)
        return text

    def get_vocab(self) -> dict[str, int]:
        vocab: dict[str, int] = self._backend.get_vocab()
        return vocab

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def _id(self, token: str | None) -> int | None:
        if token is None:
            return None
        number: int | None = self._backend.token_to_id(token)
        return self.unk_token_id if number is None else number

    # --- identity

    def stop_token_ids(self) -> tuple[int, ...]:
        """Returns the ids that end a turn, as the model's own files name them."""
        generation = _json(self.folder / "generation_config.json").get("eos_token_id")
        named = generation if isinstance(generation, list) else [generation]
        ids = [self.eos_token_id, *named]
        return tuple(dict.fromkeys(token_id for token_id in ids if isinstance(token_id, int)))

    def digest(self, *parts: str) -> str:
        """Returns a digest of everything that affects the ids, including `parts`."""
        digest = hashlib.blake2b(digest_size=6)
        for data in (
            (self.folder / "tokenizer.json").read_bytes(),
            json.dumps(self.named_tokens, sort_keys=True).encode(),
            *(part.encode() for part in parts),
        ):
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Loads the tokenizer from a local folder, or by its hub name if a hub can be reached."""
    folder = Path(source)
    if not folder.is_dir():
        folder = download(str(source), FILES, instead="give a folder that holds a tokenizer.json")
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(
            f"{folder} has no tokenizer.json; save the model's fast tokenizer there "
            "(tokenizer.save_pretrained(folder) in transformers)"
        )
    return Tokenizer(folder, name=str(source))


def is_hub_name(name: str) -> bool:
    """Returns whether the name has the form `ORG/NAME`."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", name)) and not name.startswith(".")


def download(name: str, files: Sequence[str], *, instead: str) -> Path:
    """Returns the folder with these files (names or patterns) of a repository on the hub, without
    its subfolders. Raises `UsageError` if the hub does not give them. `instead` is the advice for
    that case."""
    if not is_hub_name(name):
        raise UsageError(f"{name} is not a folder, and no name on the hub (ORG/NAME); {instead}")
    hub = import_extra("huggingface_hub", needed_by=f"{name} is not a folder, and fetching it")
    try:
        # Downloads only data. A repository may contain code, which stays there.
        folder = hub.snapshot_download(name, allow_patterns=list(files), ignore_patterns=["*/*"])
        return Path(folder)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{name} is not a folder, and the hub did not give it ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no reason given'}); {instead}"
        ) from error


def _backend(folder: Path) -> Any:
    tokenizers = import_extra("tokenizers", needed_by="a model's tokenizer")
    try:
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exceptions
        raise UsageError(f"{folder / 'tokenizer.json'} is not a tokenizer: {error}") from error


def _add_declared_tokens(backend: Any, settings: dict[str, Any]) -> None:
    """Adds the tokens that only tokenizer_config.json names, with the ids that it names."""
    added_token = import_extra("tokenizers", needed_by="a model's tokenizer").AddedToken
    declared = settings.get("added_tokens_decoder") or {}
    for identifier, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if backend.token_to_id(token["content"]) is not None:
            continue
        flags = {flag: bool(token.get(flag, False)) for flag in ("lstrip", "rstrip", "single_word")}
        added = added_token(
            token["content"],
            normalized=bool(token.get("normalized", False)),
            special=bool(token.get("special", False)),
            **flags,
        )
        backend.add_special_tokens([added]) if added.special else backend.add_tokens([added])
        if backend.token_to_id(token["content"]) != int(identifier):
            raise UsageError(
                f"tokenizer_config.json puts {token['content']!r} at {identifier}, "
                f"tokenizer.json at {backend.token_to_id(token['content'])}; the files do not match"
            )


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no JSON object")
    return data


def _named_tokens(*sources: dict[str, Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    for source in sources:
        for name in NAMED_TOKENS:
            token = source.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                named.setdefault(name, text)
    return named


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | dict[str, str] | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template") or _json(folder / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(template, list):
        return {item["name"]: item["template"] for item in template}
    return template if isinstance(template, str) else None


def _is_markup(token: str) -> bool:
    """Returns whether an added token is markup. Other added tokens are runs of spaces and the
    like."""
    return len(token) > 2 and token[0] in "<[" and token[-1] in ">]"


def _control_pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
