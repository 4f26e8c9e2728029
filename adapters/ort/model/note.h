/* The note of an EPContext node: what attune must know of the original node, as lines "name: numbers". */
#ifndef ATTUNE_ORT_NOTE_H
#define ATTUNE_ORT_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NOTE_BYTES = 2048 };

typedef struct note {
    char text[NOTE_BYTES];
    size_t length; /* length of the complete note, even if it did not fit */
} note;

/* An empty note of this version. */
void note_begin(note *n);

/* Whether everything fitted. */
static inline bool note_is_whole(const note *n) { return n->length < NOTE_BYTES; }

void note_put(note *n, const char *name, const int64_t *values, size_t count);
void note_put_real(note *n, const char *name, float value);

/* Adds a line of arbitrary text, with control characters replaced by blanks. It must be the last line. */
void note_put_text(note *n, const char *name, const char *text);

/* Whether a text is a note of this version. */
bool note_is_right(const note *n);

/* The numbers of a line. Returns how many there are; 0 if there is no such line, if it has more, or if one is invalid.
 */
size_t note_get(const note *n, const char *name, int64_t *values, size_t capacity);
bool note_get_real(const note *n, const char *name, float *value);

/* "" if there is no such line. */
void note_get_text(const note *n, const char *name, char *text, size_t capacity);

#endif
