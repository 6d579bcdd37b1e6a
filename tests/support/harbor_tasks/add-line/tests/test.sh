#!/bin/sh
lines=$(grep -c done "$PLACE/list")
[ "$lines" = 1 ] && echo 1.0 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt
