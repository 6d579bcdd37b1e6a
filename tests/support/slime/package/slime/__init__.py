"""A stand-in for slime, which is not on PyPI: its `Sample`, as its documentation describes it."""
