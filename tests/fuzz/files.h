/* For fuzzers of code that reads files and prints messages: a directory, and what would appear on the terminal. */
#ifndef ATTUNE_TESTS_FUZZ_FILES_H
#define ATTUNE_TESTS_FUZZ_FILES_H

#include "fuzz.h"
#include "support/temp_dir.h"

enum { FUZZ_PATH_CHARS = TEMP_DIR_CHARS + 64 };

/* A directory of this process, below TMPDIR; run.sh removes it. */
static inline const char *fuzz_directory(void) {
    static char path[TEMP_DIR_CHARS];
    if (!*path) temp_dir_make(path);
    return path;
}

static inline void fuzz_path(const char *name, char path[FUZZ_PATH_CHARS]) {
    snprintf(path, FUZZ_PATH_CHARS, "%s/%s", fuzz_directory(), name);
}

static inline void fuzz_write(const char *path, const void *data, size_t size) {
    FILE *const file = fopen(path, "wb");
    FUZZ_REQUIRE(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

/* Messages go here instead of to standard error, and results nowhere. The sanitizers write to descriptor 2 as before.
 */
static char fuzz_messages[4096];

static inline void fuzz_capture(void) {
    static FILE *nowhere;
    if (!nowhere) {
        nowhere = fopen("/dev/null", "w");
        stderr = fmemopen(fuzz_messages, sizeof fuzz_messages, "w");
        FUZZ_REQUIRE(nowhere && stderr);
        stdout = nowhere;
    }
    rewind(stderr);
    fuzz_messages[0] = '\0';
}

/* Whether a message was printed since fuzz_capture. */
static inline int fuzz_was_told(void) {
    fflush(stderr);
    return fuzz_messages[0] != '\0';
}

#endif
