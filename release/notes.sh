#!/usr/bin/env bash
# notes.sh VERSION: prints the section of a version in the CHANGELOG; fails if it has none.
set -euo pipefail
cd "$(dirname "$0")/.."
awk -v version="$1" '/^## / { on = ($2 == version); next } on { print; found = 1 }
  END { exit !found }' CHANGELOG.md
