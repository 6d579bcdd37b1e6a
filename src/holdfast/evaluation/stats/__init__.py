"""Computes the numbers of a run: estimates, intervals, verdicts, comparisons.

- `results`: Results: the result of each row of a run, in numbers.
- `bootstrap`: The cluster bootstrap, and the permutation test of differences.
- `estimates`: Estimates from scores in clusters: tasks are independent, their samples are not.
- `verdict`: Verdict: one number for a run, its error, and whether it passes.
- `comparison`: Comparison: the difference of two runs' scores on their common tasks.
- `summary`: Summary: a run's results as text for a terminal and as JSON for scripts.
- `outcome`: Outcome: the result of one experiment, and whether it passed.
"""
