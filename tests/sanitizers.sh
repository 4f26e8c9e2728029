# shellcheck shell=sh
# Options of sanitizers, for whatever runs a program of a build with one: read by `. tests/sanitizers.sh`, from the
# project's folder. Options that the caller has set are kept.
# Up to gcc 13, the sanitizers watch __tls_get_addr, and take a thread-local block of a dlopened library (for us LLVM's)
# that begins 16 bytes into a page for one of glibc before 2.25, which had its address and size in those 16 bytes. Today
# they are AddressSanitizer's own header, and reading where it points ends a run in which nothing leaked with "Tracer
# caught signal 11". What was allocated before decides where the block lies, so the same run fails every time. Without
# that, the block is found by the pointers to it; test_leaks.sh has both.
tls=intercept_tls_get_addr=0
# Undefined behaviour may end a program by SIGILL: the line of the operation is in AddressSanitizer's report. With 2
# nothing of the program may take that signal for itself, as cmocka does.
export ASAN_OPTIONS=$tls:${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1:handle_sigill=2}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp:print_suppressions=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=$tls:${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp:allocator_may_return_null=1}
