#!/bin/sh
# tier0.sh OUTPUT TARGETS OPERATORS [DOTS]: makes libattune-tier0.so of the kernels that tier0_kernels.sh lists, for
# TARGETS, those of other operators than attention, and of latents, for OPERATORS. DOTS have dot products of bf16.
# $ATTUNE compiles, and $LINK links.
set -eu
output=$1 targets=$2 operators=$3 dots=${4-}
here=$(dirname "$0")
work=$output.$$
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

sh "$here/tier0_bundle.sh" "$work/attune_tier0.a" attune_tier0 "$targets"
sh "$here/tier0_bundle.sh" "$work/attune_tier0_operators.a" attune_tier0_operators "$operators" operators
[ -z "$dots" ] || sh "$here/tier0_bundle.sh" "$work/attune_tier0_dots.a" attune_tier0_dots "$dots" bf16
# Without debug information there is nothing to strip but the names of kernels, which profilers show.
$LINK -Wl,-soname,libattune-tier0.so -Wl,--version-script="$here/../src/engine/tier0.map" -Wl,--build-id=none \
	-Wl,-z,separate-code -Wl,--whole-archive "$work"/*.a -Wl,--no-whole-archive -o "$work/library"
mv "$work/library" "$output"
