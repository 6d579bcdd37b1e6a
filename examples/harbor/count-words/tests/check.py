"""Checks the words that the agent counted."""

import json

with open("/work/words.json") as file:
    words = json.load(file)
expected = {"the": 7, "takes": 4, "it": 3, "wind": 3, "sail": 2}
assert words == expected, words
