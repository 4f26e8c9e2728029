#define XXH_INLINE_ALL
#include "support/ir/golden_ir.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Open addressing, by the hash of a variable's name; never full, because a text has fewer definitions than SLOTS. */
enum { SLOTS = 1 << 18 };
typedef struct variable {
    uint64_t hash; /* 0: nothing */
    uint32_t number;
} variable;

static variable *find(variable *table, const char *name, size_t length) {
    const uint64_t hash = XXH3_64bits(name, length) | 1;
    size_t at = hash % SLOTS;
    while (table[at].hash && table[at].hash != hash) at = (at + 1) % SLOTS;
    table[at].hash = hash;
    return &table[at];
}

static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

static bool starts(const char *text, const char *word) { return strncmp(text, word, strlen(word)) == 0; }

/* Whether the name that begins at `name` is defined there: let NAME, alloc NAME, for NAME in …, NAME in … */
static bool is_defined(const char *line, const char *name, const char *end) {
    const char *const before = name - line >= 4 ? name - 4 : line;
    if (starts(before, "let ") || (name - line >= 6 && starts(name - 6, "alloc "))) return true;
    while (*line == ' ') line++;
    return starts(end, " in ") && (starts(line, "for ") || starts(line, "parallel for "));
}

uint64_t golden_hash(const char *ir) {
    variable *const table = calloc(SLOTS, sizeof *table);
    XXH3_state_t state;
    uint32_t count = 0;
    const char *line = ir;
    XXH3_64bits_reset(&state);
    while (table && *ir) {
        const char *end = ir;
        while (in_name(*end)) end++;
        if (end == ir || !isalpha((unsigned char)*ir)) {
            end = end == ir ? ir + 1 : end;
            XXH3_64bits_update(&state, ir, (size_t)(end - ir));
            if (*ir == '\n') line = end;
            ir = end;
            continue;
        }
        variable *const v = find(table, ir, (size_t)(end - ir));
        if (is_defined(line, ir, end)) v->number = ++count;
        if (v->number)
            XXH3_64bits_update(&state, &v->number, sizeof v->number);
        else
            XXH3_64bits_update(&state, ir, (size_t)(end - ir));
        ir = end;
    }
    free(table);
    return table ? XXH3_64bits_digest(&state) : 0;
}
