#!/usr/bin/env bash
# The bench judges peers, finds out what got slower and publishes what it found: bench/checks.py checks that it
# does. Without Python it is skipped.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # nothing there that other tests do not run
cd "$(dirname "$0")/../.." || exit 1
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || exit 77
exec python3 bench/checks.py "$BUILD"
