#!/bin/sh
# tier0_bundle.sh OUTPUT NAME TARGETS [WORD]: compiles the kernels that tier0_kernels.sh WORD lists into the archive
# OUTPUT, as the bundle NAME_bundle. $ATTUNE compiles.
set -eu
here=$(dirname "$0")
list=$1.$$
trap 'rm -f "$list"' EXIT
sh "$here/tier0_kernels.sh" ${4-} > "$list"
# Nothing of this machine may count: no cache, no results of tuning.
env -u ATTUNE_ISA -u ATTUNE_MACHINE -u ATTUNE_STRICT -u ATTUNE_RECORD ATTUNE_CACHE_DIR= ATTUNE_CACHE_BASE= \
	"$ATTUNE" bundle --kernels-only -o "$1" --name "$2" --targets "$3" "$list"
