"""The image addresses that an engine may get, with every provider."""

_SCHEMES = ("data:image/", "https://", "http://")
WRONG_URL = (
    "an image is 'data:image/…;base64,…' or an address that begins with 'https://' or 'http://'."
)
"""Never quotes the address: a signed one holds a secret."""


def is_image_url(url: str) -> bool:
    """Whether an engine may get it. A path of the engine's own files is not allowed."""
    return url.lower().startswith(_SCHEMES)
