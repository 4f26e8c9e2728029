/* The keys and values of a sweep's problems as the user wrote them: those that all have in common, and those that tell
 * them apart, which are columns of the table and lines of the plot. */
#ifndef ATTUNE_TOOLS_SWEEP_KEYS_H
#define ATTUNE_TOOLS_SWEEP_KEYS_H

#include "common/manifest.h"

typedef struct sweep_keys {
    size_t problems, count;
    char **names;        /* of the keys, in the order in which they appear first */
    const char **values; /* count of each problem; NULL: it does not name the key */
    bool *varies;        /* whether problems differ in the key */
    char **texts;        /* the values point into them */
} sweep_keys;

/* false after a message; close it in any case. */
bool sweep_keys_open(sweep_keys *k, const manifest *list);
void sweep_keys_close(sweep_keys *k);

const char *sweep_keys_value(const sweep_keys *k, size_t problem, size_t key);

/* "head_dim=64, is_causal=1": the keys that the problem names and that vary or not, as `varies` says, without the key
 * `except` (SIZE_MAX: none). NULL after a message; free it. */
char *sweep_keys_text(const sweep_keys *k, size_t problem, bool varies, size_t except);

#endif
