"""Evaluations as pytest tests: run anywhere, killed at any moment, resumed by the same command.

The names below are the whole public API. They are imported when first used: what a test session
that has no evaluation in it pays is next to nothing.
"""
