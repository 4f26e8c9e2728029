/* A block that doubles while bytes come, up to the most that the caller allows: pipes do not tell their length. */
#include "common/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *input_name(const char *path) { return strcmp(path, "-") == 0 ? "standard input" : path; }

static bool is_stdin(const input_file *in) { return strcmp(in->path, "-") == 0; }

static bool cannot_read(const input_file *in, char message[ATTUNE_MESSAGE_BYTES]) {
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%.300s: cannot read: %s", *in->path ? input_name(in->path) : "''",
             strerror(errno));
    return false;
}

bool input_open(input_file *in, const char *path, char message[ATTUNE_MESSAGE_BYTES]) {
    struct stat status;
    *in = (input_file){.path = path};
    in->fd = is_stdin(in) ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0 || fstat(in->fd, &status) != 0) {
        cannot_read(in, message);
        input_close(in);
        return false;
    }
    in->has_size = S_ISREG(status.st_mode) && status.st_size > 0 && !is_stdin(in);
    in->size = in->has_size ? (size_t)status.st_size : 0;
    return true;
}

void input_close(input_file *in) {
    if (in->fd >= 0 && !is_stdin(in)) close(in->fd);
    in->fd = -1;
}

bool input_read(input_file *in, void *to, size_t bytes, size_t *got, char message[ATTUNE_MESSAGE_BYTES]) {
    *got = 0;
    while (*got < bytes) {
        const ssize_t count = read(in->fd, (char *)to + *got, bytes - *got);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return cannot_read(in, message);
        if (count == 0) break;
        *got += (size_t)count;
    }
    return true;
}

/* A larger block with the same contents: aligned memory cannot grow in place. */
static bool grow(const input_file *in, char **data, size_t used, size_t capacity, char message[ATTUNE_MESSAGE_BYTES]) {
    char *const grown = capacity < PTRDIFF_MAX - 64 ? aligned_alloc(64, (capacity + 64) & ~(size_t)63) : NULL;
    if (!grown) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "%.300s: out of memory reading %zu bytes", input_name(in->path),
                 capacity);
        return false;
    }
    if (used) memcpy(grown, *data, used);
    free(*data);
    *data = grown;
    return true;
}

static bool has_nul(const input_file *in, const char *data, size_t from, size_t to,
                    char message[ATTUNE_MESSAGE_BYTES]) {
    const char *const nul = memchr(data + from, 0, to - from);
    if (!nul) return false;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%.300s: this is not a text: it has a NUL at byte %zu",
             input_name(in->path), (size_t)(nul - data));
    return true;
}

char *input_take(input_file *in, size_t most, bool is_text, size_t *got, char message[ATTUNE_MESSAGE_BYTES]) {
    enum { FIRST = 65536 };
    char *data = NULL;
    size_t capacity = 0;
    *got = 0;
    for (;;) {
        size_t next = capacity ? capacity * 2 : in->has_size ? in->size + 1 : FIRST, count;
        if (next > most || next < capacity) next = most;
        if (!grow(in, &data, *got, next, message)) break;
        capacity = next;
        if (!input_read(in, data + *got, capacity - *got, &count, message)) break;
        if (is_text && has_nul(in, data, *got, *got + count, message)) break;
        *got += count;
        if (*got < capacity || capacity == most) {
            data[*got] = 0; /* grow always leaves room for it */
            return data;
        }
    }
    free(data);
    return NULL;
}

static char *read_whole(const char *path, const char *kind, size_t most, bool is_text, size_t *bytes,
                        char message[ATTUNE_MESSAGE_BYTES]) {
    input_file in;
    if (!input_open(&in, path, message)) return NULL;
    char *data = NULL;
    *bytes = most + 1;
    if (!in.has_size || in.size <= most) {
        data = input_take(&in, most + 1, is_text, bytes, message);
        if (!data) *bytes = 0;
    }
    input_close(&in);
    if (*bytes <= most) return data;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%.300s: %s have at most %zu bytes, and this file has more",
             input_name(path), kind, most);
    free(data);
    return NULL;
}

char *tool_read_file(const char *path, const char *kind, size_t most, size_t *bytes,
                     char message[ATTUNE_MESSAGE_BYTES]) {
    return read_whole(path, kind, most, false, bytes, message);
}

char *tool_read_text(const char *path, const char *kind, size_t most, size_t *bytes,
                     char message[ATTUNE_MESSAGE_BYTES]) {
    return read_whole(path, kind, most, true, bytes, message);
}
