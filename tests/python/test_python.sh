#!/usr/bin/env bash
# The Python package with Python's standard library, on the library of the build directory. Tests with NumPy and torch
# are those of `make test-engines`.
set -u
cd "$(dirname "$0")/../.." || exit 1
if [ -n "${SANITIZE:-}" ]; then
    echo "1..0 # SKIP Python is not built with the sanitizer"
    exit 77
fi
if ! python3 -c 'import ctypes, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    echo "1..0 # SKIP there is no python3 of version 3.9 or newer"
    exit 77
fi
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=python ATTUNE_LIBRARY="$BUILD/libattune.so" exec python3 tests/python/smoke.py
