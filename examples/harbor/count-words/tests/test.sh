#!/bin/sh
# Writes the reward: 1 if the file is right, and 0 if it is not.
if python3 /tests/check.py; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
