#!/bin/sh
# Starts a coding agent. Those that want the address in a file or an option, and not in a variable,
# get it there: BASE in an argument stands for it.
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
