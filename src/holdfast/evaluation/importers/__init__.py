"""Results of other libraries.

- `load`: Results of other tools, for comparison: Inspect logs, verifiers results, evaluation rows.
- `inspect`: Inspect's logs: `.eval` (a zip of JSON) and `.json`.
- `verifiers`: verifiers' results: `results.jsonl` beside `metadata.json`, and, of later versions,
  `traces.jsonl`.
"""
