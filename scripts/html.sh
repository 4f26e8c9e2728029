#!/usr/bin/env bash
# usage: html.sh OUT: the documentation as a site with search in OUT: all pages, and a reference of C and of Python from
# the sources (scripts/site.py, Sphinx with Furo, MyST and Breathe, Doxygen). Fails if a link leads nowhere.
#   BUILD  where the environment of Sphinx is made, once, by pip (build)
#   DEPS   no: installs nothing
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: html.sh OUT" >&2; exit 2; }
out=$(realpath -m "$1") BUILD=${BUILD:-build}
packages="sphinx==9.0.4 furo==2025.12.19 myst-parser==5.2.0 breathe==5.1.0"
python=$BUILD/site/bin/python

if ! "$python" -c 'import breathe, furo, myst_parser' 2>/dev/null; then
    [ "${DEPS:-}" != no ] || { echo "html: $packages would have to be installed (DEPS=no)" >&2; exit 1; }
    python3 -m venv "$BUILD/site"
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet --disable-pip-version-check --no-input $packages
fi
MAKEFLAGS='' make --no-print-directory docs BUILD="$BUILD"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/pages"
python3 scripts/site.py "$work/pages"
cp scripts/site_conf.py "$work/pages/conf.py"
version=$(sed -n 's/^#define ATTUNE_VERSION_STRING "\(.*\)"/\1/p' include/attune.h)
rm -rf "$out"
VERSION=$version DOXYGEN_XML=$(realpath "$BUILD/docs/xml") "$python" -m sphinx -q -b html -d "$work/doctrees" \
    "$work/pages" "$out" 2>"$work/warnings"
# What Breathe cannot say in C, such as a union without a name, is missing on the page and no failure.
if grep -E 'myst\.|toc\.|Cannot find|docutils' "$work/warnings" >&2; then
    echo "html: these lead nowhere" >&2
    exit 1
fi
python3 scripts/site.py --check "$out"
echo "written to $1/index.html"
