/* Contexts in tests, what they log, and file systems on which their caches lie. */
#ifndef ATTUNE_TESTS_CONTEXTS_H
#define ATTUNE_TESTS_CONTEXTS_H

#include "engine/create.h"

/* The test fails if there is none. hooks NULL: none. */
attune_context *test_context(const attune_context_options *options, const at_context_hooks *hooks);

/* A log function: how many warnings and errors there were, and the last of them. */
void keep_message(void *user, attune_log_level level, const char *message);
extern int messages;
extern char last_message[ATTUNE_MESSAGE_BYTES];
void forget_messages(void);

/* As openat of at_io, on a file system without O_TMPFILE. */
int no_tmpfile(int dir, const char *path, int flags, mode_t mode);

/* The file was used so many seconds ago. */
void make_older(const char *file, int seconds);

#endif
