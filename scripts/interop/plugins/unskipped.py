"""A pytest plugin: examples that are marked to be skipped are run all the same."""


def pytest_collection_modifyitems(items: list) -> None:
    for item in items:
        item.own_markers[:] = [one for one in item.own_markers if one.name != "skip"]
