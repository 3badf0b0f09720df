#!/usr/bin/env bash
# notes.sh VERSION: the CHANGELOG's section on a version, as a release's notes; an error if it has none.
set -euo pipefail
cd "$(dirname "$0")/.."
awk -v version="$1" '/^## / { on = ($2 == version); next } on { print; found = 1 }
  END { exit !found }' CHANGELOG.md
