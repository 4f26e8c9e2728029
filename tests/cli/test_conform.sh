#!/usr/bin/env bash
# Conformance: the committed cases, and those of CONFORMANCE_DIR (ONNX's public node tests, a folder with a case.json
# each; default ../shared/conformance), by machine code on every instruction set that this CPU runs and by the
# interpreter. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
suite=${CONFORMANCE_DIR:-../shared/conformance}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/stdout" "$work/stderr"
# shellcheck source=tests/support/cli.sh
. tests/support/cli.sh

# conform NAME DIR CASES ARGUMENT…: every one of at least so many cases passes.
conform() {
    local name=$1 folder=$2 cases=$3 status=0 passed
    shift 3
    "$ATTUNE-lab" conform "$folder" "$@" >"$work/stdout" 2>&1 </dev/null || status=$?
    passed=$(tail -n 1 "$work/stdout" | sed -nE 's/^([0-9]+) passed, 0 failed$/\1/p')
    [ "$status" -eq 0 ] && [ "${passed:-0}" -ge "$cases" ]
    report $? "$name: ${passed:-not all} cases passed"
}

isas=$("$ATTUNE" info --json | sed -nE '/"isas"/,/\]/s/^ *"([a-z0-9_-]+)",?$/\1/p')
[ -n "$isas" ]
report $? "instruction sets: $(echo $isas)"
for isa in $isas; do conform "committed cases, $isa" tests/data/conform 9 --isa="$isa"; done
folders=()
for folder in "$suite"/*/; do [ -d "$folder" ] && folders+=("$folder"); done
if [ ${#folders[@]} -gt 0 ]; then
    for isa in $isas; do
        for folder in "${folders[@]}"; do
            conform "the public cases, $isa, $(basename "$folder")" "$folder" 1 --isa="$isa"
        done
    done
else
    skip "the public cases" "there is no folder $suite (CONFORMANCE_DIR)"
fi
echo "1..$number"
