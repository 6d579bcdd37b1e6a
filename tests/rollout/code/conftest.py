"""The folder of modules that these tests write and import."""

from support.rollout.project import project

__all__ = ["project"]
