#!/usr/bin/env bash
# The wheel in an empty environment: without its extra the demo says what to install, with it it runs.
# Usage: tests/wheel.sh [python]
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
fail() { echo "wheel: $1" >&2; exit 1; }

"${1:-python3}" -m venv "$room/env"
"$room/env/bin/pip" wheel --quiet --no-deps --wheel-dir "$room/dist" .
wheel=$(echo "$room"/dist/proplace-*.whl)
cd "$room" # nothing of the checkout is at hand here
env/bin/pip install --quiet "$wheel"

env/bin/proplace --version >version.txt || fail "the command does not start"
if env/bin/proplace demo >out.txt 2>err.txt; then fail "the demo ran without its extra"; fi
[ "$(wc -l <err.txt)" = 1 ] || fail "more than one sentence: $(cat err.txt)"
grep -q "pip install 'proplace\[demo\]'" err.txt || fail "no word of what to install: $(cat err.txt)"

env/bin/pip install --quiet "$wheel[demo]"
env/bin/proplace demo >out.txt || fail "the demo fails: $(cat out.txt)"
grep -q PROPLACE out.txt || fail "the demo shows no table: $(cat out.txt)"
echo "wheel: $(basename "$wheel") installs, and its demo runs"
