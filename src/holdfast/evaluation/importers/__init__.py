"""Results of other libraries.

- `load`: Results of other tools, for comparison: Inspect logs, verifiers results, evaluation rows.
- `inspect`: Inspect's logs: `.eval` (a zip of JSON) and `.json`.
- `verifiers`: verifiers' results: `results.jsonl` with `metadata.json`, or, in later versions,
  `traces.jsonl`.
"""
