#!/usr/bin/env bash
# Fails on a line of code that is longer than 120 columns, and on a C source that does not begin with a sentence
# about itself, except for those of tests. Columns are characters of UTF-8, whatever the locale.
set -euo pipefail
cd "$(dirname "$0")/.."

# Without git, as in a tarball, all files that look like sources.
list_files() {
    git ls-files 2>/dev/null || find . -path './build*' -prune -o -type f -print
}
mapfile -t files < <(list_files | grep -E '(\.(c|h|cpp|hpp|sh|py|def|map|air|in|mk)|(^|/)Makefile|\.ci/run)$')
[ "${#files[@]}" -gt 0 ] || { echo "check-lines: no files" >&2; exit 1; }
LC_ALL=C awk -v files="${#files[@]}" '
    FNR == 1 && FILENAME ~ /^(\.\/)?(adapters|bench|examples|lab|reference|src|tools)\/.*\.[ch]$/ && $0 !~ /^\/\* / {
        print FILENAME ":1: begins without a comment that says what the file is for"
        bare++
    }
    {
        line = $0
        gsub(/[\200-\277]/, "", line) # all bytes of a character except the first
        if (length(line) > 120) {
            print FILENAME ":" FNR ": " length(line) " columns; 120 are the most"
            count++
        }
    }
    END {
        print "check-lines: " files " files, " count + 0 " lines too long, " bare + 0 " sources without a first comment"
        exit count + bare > 0
    }' "${files[@]}"
