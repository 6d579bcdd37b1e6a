"""The processes of isolated tools."""

from holdfast.rollout.tools.isolated import pool


def end_all() -> None:
    office = pool._offices[-1]
    office.close()
    office._pools.clear()
