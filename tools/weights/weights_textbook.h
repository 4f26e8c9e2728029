/* Names that books, courses and home-made models give a block's weights: query, W_k, value_proj, combine, fc ... */
#ifndef ATTUNE_TOOLS_WEIGHTS_TEXTBOOK_H
#define ATTUNE_TOOLS_WEIGHTS_TEXTBOOK_H

#include <attune.h>
#include <stdbool.h>

/* Which weight has this name, without the prefix of its block; ATTUNE_NUM_WEIGHTS if none has. Capitals do not matter.
 * *is_bare (may be NULL): it is a plain matrix, not the weight of a layer: its name does not tell its layout. */
int textbook_id(const char *name, bool *is_bare);

/* Some of these names, for messages. */
const char *textbook_names(void);

#endif
