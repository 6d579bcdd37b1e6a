#!/bin/sh
mkdir -p "$PLACE"
echo done >>"$PLACE/list"
