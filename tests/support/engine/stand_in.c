#define _GNU_SOURCE
#include "support/engine/stand_in.h"

#include "generator_id.h"
#include "target/codegen_abi.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

char stand_in_directory[TEMP_DIR_CHARS], stand_in_path[STAND_IN_CHARS];

void stand_in_real(char path[PATH_MAX]) {
    const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 64);
    assert_true(n > 0);
    path[n] = '\0';
    strcpy(strrchr(path, '/'), "/../attune-codegen-worker");
}

/* Under a name of its own first: a script that is being written cannot be executed. */
void stand_in_write(const char *text) {
    char fresh[STAND_IN_CHARS + 8];
    snprintf(fresh, sizeof fresh, "%s.new", stand_in_path);
    const int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    assert_int_equal(rename(fresh, stand_in_path), 0);
}

void stand_in(const char *before, const char *after) {
    char text[PATH_MAX + 4096];
    const int length =
        snprintf(text, sizeof text, "#!/bin/sh\n%s\nprintf 'AtWK\\%03o\\000\\000\\000\\%03o\\000\\000\\000%s'\n%s\n",
                 before, (unsigned)AT_CODEGEN_ABI, (unsigned)strlen(ATTUNE_GENERATOR_ID), ATTUNE_GENERATOR_ID, after);
    assert_in_range(length, 1, sizeof text - 1);
    stand_in_write(text);
}

int stand_in_setup(void **state) {
    (void)state;
    temp_dir_make(stand_in_directory);
    snprintf(stand_in_path, sizeof stand_in_path, "%s/worker", stand_in_directory);
    return 0;
}

int stand_in_teardown(void **state) {
    (void)state;
    temp_dir_remove(stand_in_directory);
    return 0;
}
