"""Computes the numbers of a run: estimates, intervals, verdicts, comparisons.

- `results`: Results, the numbers of each row of a run.
- `bootstrap`: The cluster bootstrap, and the permutation test of differences.
- `estimates`: Estimates from scores in clusters, where tasks are independent and their samples are
  not.
- `verdict`: Verdict, one number for a run, with its error and whether the run passes.
- `comparison`: Comparison, the difference of two runs' scores on their common tasks.
- `summary`: Summary, a run's results as text for a terminal and as JSON for scripts.
- `outcome`: Outcome, the result of one experiment, and whether it passed.
"""
