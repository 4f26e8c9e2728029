/* Directories that live as long as a test. */
#ifndef ATTUNE_TESTS_TEMP_DIR_H
#define ATTUNE_TESTS_TEMP_DIR_H

#include <stddef.h>

enum { TEMP_DIR_CHARS = 256 };

/* Makes an empty directory (0700) below TMPDIR or /tmp. Ends the program if it cannot. */
void temp_dir_make(char path[TEMP_DIR_CHARS]);

/* Removes it with the files in it. */
void temp_dir_remove(const char *path);

/* And with all directories below it. */
void temp_dir_remove_all(const char *path);

/* A file of its own (0644) with these bytes. Ends the program if it cannot be written. */
void file_write(const char *path, const void *data, size_t bytes);

/* A directory as a fixture of cmocka: *state is the path. One at a time. */
int temp_dir_setup(void **state);
int temp_dir_teardown(void **state);

/* How many files in it have names that start with `prefix` and end with `suffix`. */
int temp_dir_count(const char *path, const char *prefix, const char *suffix);

/* The path of the first file whose name ends with `suffix`; "" if there is none. */
void temp_dir_first(const char *path, const char *suffix, char file[TEMP_DIR_CHARS]);

#endif
