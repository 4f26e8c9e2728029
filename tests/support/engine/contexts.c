#define _GNU_SOURCE
#include "support/engine/contexts.h"

#include "tune/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

attune_context *test_context(const attune_context_options *options, const at_context_hooks *hooks) {
    attune_context *context = NULL;
    at_context_hooks with = hooks ? *hooks : (at_context_hooks){0};
    with.find_tuned = at_tuning_find;
    if (at_context_create(options, &with, &context)) fail_msg("%s", attune_last_message());
    return context;
}

int messages;
char last_message[ATTUNE_MESSAGE_BYTES];

void keep_message(void *user, attune_log_level level, const char *message) {
    (void)user;
    if (level > ATTUNE_LOG_WARNING) return;
    snprintf(last_message, sizeof last_message, "%s", message);
    messages++;
}

void forget_messages(void) {
    messages = 0;
    last_message[0] = '\0';
}

int no_tmpfile(int dir, const char *path, int flags, mode_t mode) {
    if ((flags & O_TMPFILE) != O_TMPFILE) return at_default_io()->openat(dir, path, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
}

void make_older(const char *file, int seconds) {
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= seconds;
    times[1] = times[0];
    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
}
