/* Cuts a text into pairs, and reads their values: whole numbers, decimal ones and words. */
#define _GNU_SOURCE
#include "problem/fields_text.h"

#include "base/plain_text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* Trims blanks at both ends. */
static void trim(const char **text, int *length) {
    while (*length && is_blank(**text)) ++*text, --*length;
    while (*length && is_blank((*text)[*length - 1])) --*length;
}

size_t mha_pair_length(const char *text) {
    size_t length = 0;
    for (bool quoted = false; text[length] && (quoted || text[length] != ','); length++) quoted ^= text[length] == '"';
    return length;
}

bool mha_is_quoted(const mha_pair *pair) {
    return pair->value_length >= 2 && pair->value[0] == '"' && pair->value[pair->value_length - 1] == '"';
}

mha_pair mha_unquoted(const mha_pair *pair) {
    mha_pair inner = *pair;
    if (!mha_is_quoted(pair)) return inner;
    inner.value++;
    inner.value_length -= 2;
    trim(&inner.value, &inner.value_length);
    return inner;
}

/* Splits `length` characters at the first '='. False if there is none, or no key before it. */
static bool cut(const char *text, int length, mha_pair *pair) {
    const char *const equals = memchr(text, '=', (size_t)length);
    if (!equals) return false;
    *pair = (mha_pair){text, equals + 1, (int)(equals - text), (int)(text + length - equals - 1)};
    trim(&pair->key, &pair->key_length);
    trim(&pair->value, &pair->value_length);
    return pair->key_length > 0;
}

/* Earlier pairs have been read, so they are well formed. */
static attune_status check_new(const char *text, const mha_pair *pair, attune_status bad, at_error *err) {
    for (const char *at = text;;) {
        const size_t length = mha_pair_length(at);
        mha_pair before;
        if (at + length >= pair->key || !cut(at, (int)length, &before)) return ATTUNE_OK;
        if (before.key_length == pair->key_length && !memcmp(before.key, pair->key, (size_t)pair->key_length))
            return at_fail(err, bad, "'%.*s' is given twice", pair->key_length, pair->key);
        at += length + 1;
    }
}

/* Quotation marks may only enclose a whole value. */
static attune_status check_quotes(const mha_pair *pair, attune_status bad, at_error *err) {
    int marks = 0;
    for (int i = 0; i < pair->value_length; i++) marks += pair->value[i] == '"';
    if (marks == 0 || (marks == 2 && mha_is_quoted(pair))) return ATTUNE_OK;
    return at_fail(err, bad, "%.*s is '%.*s', %s", pair->key_length, pair->key,
                   pair->value_length > 80 ? 80 : pair->value_length, pair->value,
                   marks == 1 ? "in which a quotation mark stands alone" : "which is not one text in quotation marks");
}

static attune_status bad_pair(const char *text, int length, attune_status bad, at_error *err) {
    const bool is_last = !text[length];
    trim(&text, &length);
    return at_fail(err, bad, "'%.*s' is not of the form key=value%s", length > 80 ? 80 : length, text,
                   is_last && !length ? "; nothing follows the last comma" : "");
}

attune_status mha_for_each_pair(const char *text, attune_status bad, mha_pair_fn *take, void *user, at_error *err) {
    if (!text[strspn(text, " \t\r\n")]) return ATTUNE_OK;
    for (const char *at = text;;) {
        const size_t length = mha_pair_length(at);
        mha_pair pair;
        if (length > 4096) return at_fail(err, bad, "a pair of %zu characters is too long", length);
        if (!cut(at, (int)length, &pair)) return bad_pair(at, (int)length, bad, err);
        attune_status status = check_new(text, &pair, bad, err);
        if (!status) status = check_quotes(&pair, bad, err);
        if (!status && !mha_is_quoted(&pair) && memchr(pair.value, '=', (size_t)pair.value_length))
            status = at_fail(err, bad, "%.*s is '%.*s', which has a '=' in it; commas separate pairs", pair.key_length,
                             pair.key, pair.value_length > 80 ? 80 : pair.value_length, pair.value);
        if (!status) status = take(user, &pair, err);
        if (status) return status;
        if (!at[length]) return ATTUNE_OK;
        at += length + 1;
    }
}

static bool equal(const char *text, int length, const char *word) {
    return (size_t)length == strlen(word) && !memcmp(text, word, (size_t)length);
}

bool mha_key_is(const mha_pair *pair, const char *key) { return equal(pair->key, pair->key_length, key); }
bool mha_value_is(const mha_pair *pair, const char *value) { return equal(pair->value, pair->value_length, value); }

/* The value as a terminated string, if it is short enough to be a number. */
static bool number_text(const mha_pair *pair, char text[64]) {
    if (pair->value_length < 1 || pair->value_length > 63) return false;
    memcpy(text, pair->value, (size_t)pair->value_length);
    text[pair->value_length] = '\0';
    return strchr("+-.0123456789abcdefABCDEFinIN", text[0]) != NULL; /* strto* would skip spaces */
}

attune_status mha_value_int(const mha_pair *pair, attune_status bad, int64_t *out, at_error *err) {
    char text[64], *end = text;
    errno = 0;
    if (number_text(pair, text)) *out = strtoll(text, &end, 10);
    if (end != text && !*end && !errno) return ATTUNE_OK;
    return at_fail(err, bad, "%.*s is '%.*s', which is not an integer%s", pair->key_length, pair->key,
                   pair->value_length, pair->value, errno == ERANGE ? " of 64 bits" : "");
}

attune_status mha_value_double(const mha_pair *pair, attune_status bad, double *out, at_error *err) {
    char text[64], *end = text;
    if (number_text(pair, text)) *out = at_read_double(text, &end);
    if (end != text && !*end) return ATTUNE_OK;
    return at_fail(err, bad, "%.*s is '%.*s', which is not a number", pair->key_length, pair->key, pair->value_length,
                   pair->value);
}

void mha_write(mha_writer *writer, const char *format, ...) {
    size_t room = writer->length < writer->capacity ? writer->capacity - writer->length : 0;
    va_list args;
    va_start(args, format);
    int length = at_vprint(room ? writer->text + writer->length : NULL, room, format, args);
    va_end(args);
    if (length > 0) writer->length += (size_t)length;
}

/* The fewest digits that parse to the same number. */
void mha_write_number(mha_writer *writer, double number) {
    enum { FEWEST = 15, MOST = 17 };
    char text[64];
    int digits = FEWEST;
    for (; digits < MOST; digits++) {
        mha_writer attempt = {text, sizeof text, 0};
        double back = 0;
        mha_write(&attempt, "%.*g", digits, number);
        const mha_pair pair = {.value = text, .value_length = (int)attempt.length};
        if (mha_value_double(&pair, ATTUNE_INTERNAL, &back, NULL) == ATTUNE_OK && back == number) break;
    }
    mha_write(writer, "%.*g", digits, number);
}

void mha_write_key(mha_writer *writer, const char *key) { mha_write(writer, "%s%s=", writer->length ? "," : "", key); }
