#!/bin/sh
python3 - <<'END'
import collections, json, re

words = re.findall(r"[a-z-]+", open("/work/poem.txt").read().lower())
ranked = sorted(collections.Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
json.dump(dict(ranked[:5]), open("/work/words.json", "w"))
END
