#!/usr/bin/env bash
# The names of the fields of a schedule as src/schedule/schedule.def lists them, a line each.
set -euo pipefail
cd "$(dirname "$0")/.."
echo strategy
sed -nE 's/^FIELD\([A-Z]+, ([a-z_]+),.*/\1/p' src/schedule/schedule.def | LC_ALL=C sort -u
