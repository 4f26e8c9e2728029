# Installing compiles and links below $BUILD/installed, and tests do so at the same time with other directories. To be
# sourced: from here on BUILD is a copy. Whoever sources this removes it.
# A command that is linked anew compiles the same kernels for tier 0; the copy keeps those that it has, because make
# takes a command outside of BUILD as it is.
export TIER0_ATTUNE=$BUILD/attune
build_copy=$(mktemp -d)
cp -a "$BUILD"/{gen,obj,bundle_run,attune*,libattune*} "$build_copy"
BUILD=$build_copy
