"""The installed version. Building the package takes the version from a tag."""

from importlib import metadata

DISTRIBUTION = "holdfast-rollouts"
"""The name of the package on PyPI. The name `holdfast` belongs to another project there."""
UNKNOWN = "0.0.0+source"
"""The version of a source tree that is not installed."""


def installed_version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return UNKNOWN
