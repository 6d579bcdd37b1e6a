"""Images in requests, in any provider's words: which addresses an engine may be given."""

_SCHEMES = ("data:image/", "https://", "http://")
WRONG_URL = (
    "an image is 'data:image/…;base64,…' or an address that begins with 'https://' or 'http://'."
)
"""Never quotes the address: a signed one holds a secret."""


def is_image_url(url: str) -> bool:
    """Whether an engine may be given it: a path of the engine's own files is none."""
    return url.lower().startswith(_SCHEMES)
