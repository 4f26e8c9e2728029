#!/usr/bin/env bash
# usage: html.sh OUT: all pages of the documentation as HTML, by pandoc, in the same places below OUT, and the manual of
# attune.h, by Doxygen, in OUT/api. Fails if a link leads nowhere. BUILD and DEPS are passed on to make.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: html.sh OUT" >&2; exit 2; }
out=$1
command -v pandoc >/dev/null || { echo "pandoc was not found: install pandoc" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
make --no-print-directory docs
mv "${BUILD:-build}/docs" "$out/api"
rm -rf "$out/api/xml"

cat >"$work/links.lua" <<'LUA'
-- Pages are called .html; what has no page of its own stays a file.
function Link(link)
    if not link.target:match("^%a+:") then
        link.target = link.target:gsub("%.md$", ".html"):gsub("%.md#", ".html#"):gsub("attune%.1$", "attune.1.html")
    end
    return link
end
LUA
cat >"$work/style.html" <<'STYLE'
<style>
body { max-width: 60em; margin: 2em auto; padding: 0 1em; font-family: sans-serif; line-height: 1.5; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid #ccc; padding: 0.2em 0.6em; text-align: left; vertical-align: top; }
pre { background: #f4f4f4; padding: 0.8em; overflow-x: auto; } img { max-width: 100%; }
</style>
STYLE

page() { # page FILE FORMAT TO: TO is the name of the page
    mkdir -p "$(dirname "$out/$3")"
    pandoc -f "$2" -t html5 -s -L "$work/links.lua" -H "$work/style.html" \
        --metadata pagetitle="$(grep -m 1 '^# ' "$1" | cut -c3- || basename "$1")" -o "$out/$3" "$1"
}
pages=(./*.md docs/*.md bench/*.md examples/*/*.md)
for file in "${pages[@]}"; do page "$file" gfm "${file%.md}.html"; done
page docs/attune.1 man docs/attune.1.html
cp docs/*.svg docs/*.png "$out/docs"
# Files that pages link to.
files=$(grep -ohE '\]\([^)#:]+' "${pages[@]}" | cut -c3- | grep -vE '\.(md|svg|png|1)$' |
    sed 's|^\(\.\./\)*||' | sort -u)
for file in $files; do
    [ -f "$file" ] || continue
    mkdir -p "$out/$(dirname "$file")"
    cp "$file" "$out/$file"
done
echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' >"$out/index.html"

broken=0
while IFS=: read -r from target; do
    path=${target%%#*}
    [ -z "$path" ] || [ -e "$out/$(dirname "$from")/$path" ] ||
        { echo "html: $from: $target leads nowhere" >&2; broken=1; }
done < <(cd "$out" && grep -roE 'href="[^":]+"' --include=*.html --exclude-dir=api . | sed 's/href="//; s/"$//')
exit $broken
