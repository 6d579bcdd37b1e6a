#!/bin/sh
# Starts a coding agent. Those that want the address in a file or an option, and not in a variable,
# get it there: BASE in an argument stands for it.
rm -f ./made.txt # A fresh world: agents tell their model which files there are.
cat >"$HOME/opencode.json" <<END
{"provider": {"holdfast": {
  "npm": "@ai-sdk/openai-compatible",
  "name": "Holdfast",
  "options": {"baseURL": "$OPENAI_BASE_URL", "apiKey": "$OPENAI_API_KEY"},
  "models": {"oracle": {"name": "oracle"}}
}}}
END
export OPENCODE_CONFIG="$HOME/opencode.json"
for word in "$@"; do
    set -- "$@" "$(printf %s "$word" | sed "s|BASE|$OPENAI_BASE_URL|")"
    shift
done
exec "$@"
