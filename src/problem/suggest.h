/* "Did you mean": attune's name for a name of another library, or for one with a wrong letter. */
#ifndef ATTUNE_PROBLEM_SUGGEST_H
#define ATTUNE_PROBLEM_SUGGEST_H

#include "problem/fields_text.h"

/* The end of a sentence, "; did you mean num_heads?", or "". */
enum { MHA_SUGGESTION = 64 };
typedef struct mha_suggestion {
    char text[MHA_SUGGESTION];
} mha_suggestion;

/* For a key that is not a field of a problem, and for a value that is none of a field's words (some may be NULL). */
mha_suggestion mha_suggest_field(const mha_pair *pair);
mha_suggestion mha_suggest_value(const mha_pair *pair, const char *const *words, int count);

/* For a key that is none of `count` names; without other libraries' names. */
mha_suggestion mha_suggest_name(const mha_pair *pair, const char *const *names, int count);

#endif
