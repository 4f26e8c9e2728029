/* The text of a picture: names of tokens, titles, and lists of heads. */
#ifndef ATTUNE_TOOLS_LABELS_H
#define ATTUNE_TOOLS_LABELS_H

#include "common/tool.h"

typedef struct labels {
    const char **list;
    size_t count;
    char *storage;
} labels;

/* Reads the lines of a file (of one with a single line: its words), or, if `text` names no file, its words. `option` is
 * named by messages. false after one. */
bool labels_read(const char *option, const char *text, labels *l);

/* The numbers from 0, or `ids`, as text. false after a message. */
bool labels_number(size_t count, const int32_t *ids, labels *l);

void labels_free(labels *l);

/* A copy of UTF-8 text with U+FFFD for each control character; free it. NULL if it is not UTF-8, or out of memory. */
char *labels_clean(const char *text);

/* "0,3-5" as numbers below `total`, each at most once; free the list. false after a message. */
bool labels_parse_heads(const char *text, size_t total, size_t **list, size_t *count);

#endif
