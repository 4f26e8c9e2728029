/* `key=value` pairs separated by commas: the text form of problems and schedules. */
#ifndef ATTUNE_PROBLEM_FIELDS_TEXT_H
#define ATTUNE_PROBLEM_FIELDS_TEXT_H

#include "base/error.h"
#include <stdbool.h>

typedef struct mha_pair {
    const char *key, *value;
    int key_length, value_length;
} mha_pair;

/* The length of a pair, up to the comma after it. Commas in quotation marks belong to the value. */
size_t mha_pair_length(const char *text);
/* Whether the value is in quotation marks; and removes them. */
bool mha_is_quoted(const mha_pair *pair);
mha_pair mha_unquoted(const mha_pair *pair);

/* Calls take(user, pair) for each pair in order; stops at the first status that is not ATTUNE_OK. Blanks and line ends
 * around keys and values do not count. A pair without `=` or with two outside of quotation marks, an empty key and a
 * repeated key are errors of status `bad`. */
typedef attune_status mha_pair_fn(void *user, const mha_pair *pair, at_error *err);
attune_status mha_for_each_pair(const char *text, attune_status bad, mha_pair_fn *take, void *user, at_error *err);

bool mha_key_is(const mha_pair *pair, const char *key);
bool mha_value_is(const mha_pair *pair, const char *value);

/* The whole value as a decimal integer or a number; anything else is an error of status `bad` that quotes it. */
attune_status mha_value_int(const mha_pair *pair, attune_status bad, int64_t *out, at_error *err);
attune_status mha_value_double(const mha_pair *pair, attune_status bad, double *out, at_error *err);

/* Appends text as snprintf does: it never writes beyond capacity, and counts everything. */
typedef struct mha_writer {
    char *text;
    size_t capacity, length;
} mha_writer;
void mha_write(mha_writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mha_write_number(mha_writer *writer, double number);
/* Appends "key=", after a comma unless it is the first. */
void mha_write_key(mha_writer *writer, const char *key);

#endif
