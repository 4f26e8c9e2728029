#!/usr/bin/env bash
# The fields of problems as src/problem/fields.def lists them, a line each: kind, name, and the name that stands
# for this field and another one, if there is such a name.
set -euo pipefail
cd "$(dirname "$0")/.."
awk '/^FIELD\(/ {
         row = $0
         while (row !~ /\)$/ && (getline line) > 0) row = row line
         split(row, part, /[(", ]+/)
         both = ""
         if (match(row, /\.both = "[a-z_]+"/)) both = " " substr(row, RSTART + 9, RLENGTH - 10)
         print part[2], part[3] both
     }' src/problem/fields.def
