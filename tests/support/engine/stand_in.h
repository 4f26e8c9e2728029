/* Stand-ins for the worker program: shell scripts that greet as a worker does, and then do what a test wants. */
#ifndef ATTUNE_TESTS_STAND_IN_H
#define ATTUNE_TESTS_STAND_IN_H

#include "support/temp_dir.h"

#include <limits.h>

enum { STAND_IN_CHARS = TEMP_DIR_CHARS + 32 };

/* Of the temporary directory that the fixtures below make, and of the script in it. */
extern char stand_in_directory[TEMP_DIR_CHARS], stand_in_path[STAND_IN_CHARS];

/* The worker of this build. */
void stand_in_real(char path[PATH_MAX]);

/* Writes the script as it is. */
void stand_in_write(const char *text);

/* Writes a script that runs `before`, greets, and runs `after`. */
void stand_in(const char *before, const char *after);

/* Reads a request's head and ignores its rest; for the beginning of `after`. */
#define READ_HEAD "head -c 16 >/dev/null\n"

int stand_in_setup(void **state);
int stand_in_teardown(void **state);

#endif
