"""Numbers of a run: estimates, intervals, verdicts, comparisons.

- `estimates`: What may be said about scores that come in groups: the samples of one task are no
  independent evidence, tasks are.
- `bootstrap`: Resampling: the cluster bootstrap, and the permutation test of differences.
- `results`: Results: what became of each row of a run, in numbers.
- `verdict`: Verdict: one number for a run, what is known about its error, and whether that is
  enough.
- `comparison`: Comparison: how one run's scores differ from another's on the tasks that both have.
- `summary`: Summary: what a run's results say, as text for a terminal and as JSON for scripts.
- `outcome`: Outcome: what came of one experiment, and whether that is enough.
"""
