"""What tests share: one package for each package of `src/holdfast`, and what they all need here.

Tests import from here and never from each other.
"""
