#!/bin/sh
# Runs every fuzz target of the repository for the given time each.
set -eu
for_=${1:-60s}
git grep -l '^func Fuzz' -- '*_test.go' | while read -r f; do
  sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$f" | while read -r name; do
    echo "fuzz: $name in $(dirname "$f") for $for_"
    go test -run '^$' -fuzz "^$name\$" -fuzztime "$for_" "./$(dirname "$f")"
  done
done
