"""The version that is installed. It is made from a tag when the package is built."""

from importlib import metadata

DISTRIBUTION = "holdfast-rollouts"
"""The name of the package on PyPI, where `holdfast` is another project's."""
UNKNOWN = "0.0.0+source"
"""The version of a source tree that is not installed."""


def installed_version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return UNKNOWN
