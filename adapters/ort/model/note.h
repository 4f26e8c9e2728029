/* The note of an EPContext node: what attune has to know of the node that it stands for, as lines "name: numbers". */
#ifndef ATTUNE_ORT_NOTE_H
#define ATTUNE_ORT_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NOTE_BYTES = 2048 };

typedef struct note {
    char text[NOTE_BYTES];
    size_t length; /* as it would be with room enough */
} note;

/* An empty note of this version. */
void note_begin(note *n);

/* Whether all that was put had room. */
static inline bool note_is_whole(const note *n) { return n->length < NOTE_BYTES; }

void note_put(note *n, const char *name, const int64_t *values, size_t count);
void note_put_real(note *n, const char *name, float value);

/* A line of any text, whose control characters become blanks. It must be the last. */
void note_put_text(note *n, const char *name, const char *text);

/* Whether a text is a note of this version. */
bool note_is_right(const note *n);

/* The numbers of a line. Returns how many there are; 0 if there is no such line, it has more, or one is no number. */
size_t note_get(const note *n, const char *name, int64_t *values, size_t capacity);
bool note_get_real(const note *n, const char *name, float *value);

/* "" if there is no such line. */
void note_get_text(const note *n, const char *name, char *text, size_t capacity);

#endif
