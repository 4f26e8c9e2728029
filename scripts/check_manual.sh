#!/usr/bin/env bash
# usage: check_manual.sh DIR: fails unless all comments of the public headers are in the manual that `make docs` left
# there. A comment is known by the first words of its first line, without what the filter adds or takes away.
set -euo pipefail
cd "$(dirname "$0")/.."

text=$(cat "$1"/xml/*.xml | sed -E 's/<[^>]*>//g; s/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&apos;/'"'"'/g' |
    sed -E 's/&amp;/\&/g; s/\(\)//g' | tr -s ' \n' ' ')
comments=0 lost=0
while IFS= read -r words; do
    comments=$((comments + 1))
    [[ $text == *"$words"* ]] || { echo "not in the manual: $words" && lost=$((lost + 1)); }
done < <(for header in include/attune/{,expert/}*.h; do sed '/^#ifdef __cplusplus$/,/^#e/d' "$header"; done |
    grep -oE '/\* .*' | sed -E 's|^/\* (---- )?||; s| ?( ----)? ?\*/.*$||; s/`//g; s/\(\)//g' |
    awk '{ print $1 " " $2 ($3 ? " " $3 : "") }' | sed 's/ *$//')
echo "check-manual: $comments comments, $lost not in the manual"
[ "$comments" -gt 200 ] && [ "$lost" -eq 0 ]
