/* Files that the command reads: regular ones, pipes, devices and standard input. A file may have no end (/dev/zero), so
 * every reader says how many bytes its format can have. */
#ifndef ATTUNE_TOOLS_INPUT_H
#define ATTUNE_TOOLS_INPUT_H

#include <attune.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct input_file {
    const char *path; /* "-" is standard input */
    int fd;
    bool has_size; /* a regular file that says how long it is; some of /proc do not */
    size_t size;   /* then, in bytes */
} input_file;

/* What messages call it: a path, or "standard input" for "-". */
const char *input_name(const char *path);

/* All of these return false (NULL) and a `message` that names the file, if they fail. */
bool input_open(input_file *in, const char *path, char message[ATTUNE_MESSAGE_BYTES]);
void input_close(input_file *in);

/* The next `bytes` of it; *got is less only at its end. */
bool input_read(input_file *in, void *to, size_t bytes, size_t *got, char message[ATTUNE_MESSAGE_BYTES]);

/* The rest of it, but at most `most` bytes, 64-byte aligned and with a NUL after the last one. Free it. Memory is taken
 * as bytes arrive. With is_text a NUL byte among them is an error, and nothing is read after it. */
char *input_take(input_file *in, size_t most, bool is_text, size_t *got, char message[ATTUNE_MESSAGE_BYTES]);

/* The whole file in the form of input_take; more than `most` bytes are an error. `kind` says in the plural what the
 * file should hold: "lists of problems". */
char *tool_read_file(const char *path, const char *kind, size_t most, size_t *bytes,
                     char message[ATTUNE_MESSAGE_BYTES]);

/* A text without NUL bytes. */
char *tool_read_text(const char *path, const char *kind, size_t most, size_t *bytes,
                     char message[ATTUNE_MESSAGE_BYTES]);

#endif
