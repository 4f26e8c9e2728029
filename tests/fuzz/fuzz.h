/* What the fuzzers share. */
#ifndef ATTUNE_TESTS_FUZZ_H
#define ATTUNE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A property that must hold: a failure is a crash to the fuzzer, and is kept as one. */
#define FUZZ_REQUIRE(condition)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(STDERR_FILENO, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                           \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The input with a final NUL, in a block of just that size. */
static inline char *fuzz_text(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) abort();
    memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

#endif
