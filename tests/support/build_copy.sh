# Installing links the library and the command anew where PREFIX or LIBDIR is another than the build's, and other tests
# run what $BUILD holds at the same time. To be sourced: from here on BUILD is a copy. Whoever sources this removes it.
build_copy=$(mktemp -d)
cp -a "$BUILD"/{gen,obj,attune*,libattune*} "$build_copy"
BUILD=$build_copy
