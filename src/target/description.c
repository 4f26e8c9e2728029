/* The text of a description: `name=value` pairs, in the order of its fields. A class name or text of one's own becomes
 * a description here. */
#include "target/description.h"

#include "base/nearest.h"
#include "target/tuning_class.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- The tables ---- */

#define GENERIC_X86 {32, 2, 2, 1, 1, 4, 2, 2, 32 << 10, 64, 512 << 10, 32, 16 << 20, 16, 0, 8, 6}
#define GENERIC_ARM {16, 2, 2, 1, 2, 4, 2, 2, 64 << 10, 32, 1 << 20, 24, 16 << 20, 10, 0, 6, 6}

typedef struct described_class {
    const char *name;
    at_description description;
} described_class;

static const described_class classes[] = {
#define MACHINE(name, ...) {name, {__VA_ARGS__}},
#include "target/machines.def"
#undef MACHINE
};

typedef enum field_kind { RATE, COUNT, BYTES } field_kind;

typedef struct field {
    const char *name;
    field_kind kind;
    double least, most;
    size_t offset;
} field;

static const field fields[] = {
#define FIELD(name, kind, least, most, meaning) {#name, kind, least, most, offsetof(at_description, name)},
#include "target/description.def"
#undef FIELD
};
enum { NUM_FIELDS = sizeof fields / sizeof *fields };

const at_description *at_description_generic(bool is_arm) {
    static const at_description x86 = GENERIC_X86, arm = GENERIC_ARM;
    return is_arm ? &arm : &x86;
}

const at_description *at_description_of(const char *class_name, bool is_arm) {
    if (strcmp(class_name, at_class_generic) == 0) return at_description_generic(is_arm);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i].name, class_name) == 0) return &classes[i].description;
    return NULL;
}

static double *value_of(at_description *d, const field *f) { return (double *)((char *)d + f->offset); }

static double value_in(const at_description *d, const field *f) {
    return *(const double *)((const char *)d + f->offset);
}

/* ---- Text ---- */

/* Numbers are held in thousandths while they are read and printed, so that no locale and no rounding matters. */
enum { THOUSAND = 1000 };

/* A size that is a whole number of K, M or G has that suffix, the largest there is. Others have at most three decimals,
 * without zeros at their end. Returns the length, as snprintf does. */
static int print_value(double value, field_kind kind, char *text, size_t capacity) {
    const int64_t thousandths = (int64_t)(value * THOUSAND + 0.5);
    int64_t whole = thousandths / THOUSAND, part = thousandths % THOUSAND;
    size_t suffix = 0;
    int digits = 3;
    while (kind == BYTES && whole && whole % 1024 == 0 && suffix < 3) whole /= 1024, suffix++;
    if (!part) return snprintf(text, capacity, "%" PRId64 "%.*s", whole, suffix ? 1 : 0, &" KMG"[suffix]);
    for (; part % 10 == 0; digits--) part /= 10;
    return snprintf(text, capacity, "%" PRId64 ".%0*" PRId64, whole, digits, part);
}

size_t at_description_print(const at_description *d, char text[AT_DESCRIPTION_TEXT]) {
    size_t length = 0;
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        length += (size_t)snprintf(text + length, AT_DESCRIPTION_TEXT - length, "%s%s=", i ? "," : "", fields[i].name);
        length +=
            (size_t)print_value(value_in(d, &fields[i]), fields[i].kind, text + length, AT_DESCRIPTION_TEXT - length);
    }
    return length;
}

void at_description_name(const at_description *d, char *name) {
    char text[AT_DESCRIPTION_TEXT];
    const size_t length = at_description_print(d, text);
    snprintf(name, AT_CLASS_BYTES, "custom-%016" PRIx64, (uint64_t)XXH3_64bits(text, length));
}

/* ---- Parsing ---- */

typedef struct word {
    const char *text;
    size_t length;
} word;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits, of which three may come after a point; then a suffix, if it is a size. No range has more than 13 digits. */
static bool read_value(word text, field_kind kind, int64_t *thousandths) {
    enum { MOST_DIGITS = 13, DECIMALS = 3 };
    static const char suffixes[] = "KMG";
    size_t i = 0;
    int64_t value = 0;
    for (; i < text.length && is_digit(text.text[i]); i++)
        if (i < MOST_DIGITS) value = value * 10 + (text.text[i] - '0');
    if (!i || i > MOST_DIGITS) return false;
    value *= THOUSAND;
    if (kind == RATE && i < text.length && text.text[i] == '.') {
        const size_t first = ++i;
        for (int64_t unit = THOUSAND / 10; i < text.length && is_digit(text.text[i]); unit /= 10)
            value += unit * (text.text[i++] - '0');
        if (i == first || i - first > DECIMALS) return false;
    }
    const char *suffix = kind == BYTES && i < text.length ? strchr(suffixes, text.text[i]) : NULL;
    if (suffix && *suffix) {
        for (const char *s = suffixes; s <= suffix; s++)
            if (__builtin_mul_overflow(value, 1024, &value)) return false;
        i++;
    }
    *thousandths = value;
    return i == text.length;
}

static const field *find_field(word name) {
    for (size_t i = 0; i < NUM_FIELDS; i++)
        if (strlen(fields[i].name) == name.length && !memcmp(fields[i].name, name.text, name.length)) return &fields[i];
    return NULL;
}

static attune_status refuse_name(const char *what, word name, at_error *err) {
    char list[ATTUNE_MESSAGE_BYTES / 2] = "";
    size_t length = 0;
    at_nearest nearest = at_nearest_to(name.text, name.length);
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        at_nearest_try(&nearest, fields[i].name);
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s", i ? ", " : "", fields[i].name);
    }
    if (nearest.word)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s: there is no number \"%.*s\"; did you mean \"%s\"?", what,
                       (int)(name.length < 40 ? name.length : 40), name.text, nearest.word);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s: there is no number \"%.*s\"; there are: %s", what,
                   (int)(name.length < 40 ? name.length : 40), name.text, list);
}

static attune_status refuse_range(const char *what, const field *f, word value, at_error *err) {
    char least[32], most[32];
    print_value(f->least, f->kind, least, sizeof least);
    print_value(f->most, f->kind, most, sizeof most);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s: %s is %.*s; it must be from %s to %s", what, f->name,
                   (int)value.length, value.text, least, most);
}

/* One NAME=NUMBER. `given` has a bit for each number that has come before. */
static attune_status parse_one(const char *what, word one, at_description *d, uint32_t *given, at_error *err) {
    const int shown = (int)(one.length < 60 ? one.length : 60);
    const char *equals = memchr(one.text, '=', one.length);
    if (!equals || equals == one.text)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s: \"%.*s\" is not NAME=NUMBER", what, shown, one.text);
    const word name = {one.text, (size_t)(equals - one.text)}, text = {equals + 1, one.length - name.length - 1};
    const field *f = find_field(name);
    int64_t thousandths;
    if (!f) return refuse_name(what, name, err);
    if (!read_value(text, f->kind, &thousandths))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s: %s takes a %s, not \"%.*s\"", what, f->name,
                       f->kind == RATE    ? "number with at most three decimals"
                       : f->kind == COUNT ? "whole number"
                                          : "number of bytes such as 32K or 1M",
                       (int)(text.length < 40 ? text.length : 40), text.text);
    const double value = (double)thousandths / THOUSAND;
    if (value < f->least || value > f->most) return refuse_range(what, f, text, err);
    if (*given & 1u << (f - fields))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s: %s is given twice", what, f->name);
    *given |= 1u << (f - fields);
    *value_of(d, f) = value;
    return ATTUNE_OK;
}

/* What no core has. */
static attune_status check(const char *what, const at_description *d, at_error *err) {
    const int64_t width = (int64_t)d->width, l1 = (int64_t)d->l1, l2 = (int64_t)d->l2, l3 = (int64_t)d->l3;
    if (width & (width - 1))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s: width is %" PRId64 "; it must be 16, 32 or 64", what, width);
    if (l2 < l1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s: l2 is %" PRId64 " bytes and l1 %" PRId64 "; a cache is no smaller than the one before it",
                       what, l2, l1);
    if (l3 && l3 < l2)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s: l3 is %" PRId64 " bytes and l2 %" PRId64 "; a cache is no smaller than the one before it",
                       what, l3, l2);
    return ATTUNE_OK;
}

attune_status at_description_parse(const char *what, const char *text, at_description *d, at_error *err) {
    uint32_t given = 0;
    for (const char *at = text;; at++) {
        const word one = {at, strcspn(at, ",")};
        if (parse_one(what, one, d, &given, err)) return err->status;
        at += one.length;
        if (!*at) return check(what, d, err);
    }
}

_Static_assert(NUM_FIELDS <= 32, "each number has a bit");
_Static_assert(sizeof(at_description) == NUM_FIELDS * sizeof(double), "a description is its numbers, without a gap");
