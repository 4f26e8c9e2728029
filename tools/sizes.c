#include "sizes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset, of_arguments;
} fields[NUM_CALL_SIZES] = {
#define FIELD(name) {#name, offsetof(call_sizes, name), offsetof(attune_arguments, name)}
    FIELD(seq_q),       FIELD(seq_kv),      FIELD(seq_new),          FIELD(num_rows),
    FIELD(total_q),     FIELD(total_kv),    FIELD(num_pages),        FIELD(max_pages),
    FIELD(mask_seq_kv), FIELD(bias_seq_kv), FIELD(rotary_positions), FIELD(rotary_batch_stride),
#undef FIELD
};

int64_t *sizes_at(call_sizes *sizes, int index) { return (int64_t *)((char *)sizes + fields[index].offset); }

static bool parse_value(const char *pair, size_t length, const char *value, int64_t *number) {
    char *end = NULL;
    errno = 0;
    *number = strtoll(value, &end, 10);
    if (end != value && end == pair + length && errno == 0 && *number >= 0) return true;
    tool_error("--sizes: '%.*s' is not a whole number from 0 on", (int)(pair + length - value), value);
    return false;
}

static bool parse_pair(const char *pair, size_t length, call_sizes *sizes) {
    const char *const equals = memchr(pair, '=', length);
    if (!equals) {
        tool_error("--sizes: '%.*s' is not key=value", (int)length, pair);
        return false;
    }
    for (int i = 0; i < NUM_CALL_SIZES; i++)
        if (strlen(fields[i].name) == (size_t)(equals - pair) &&
            strncmp(fields[i].name, pair, (size_t)(equals - pair)) == 0)
            return parse_value(pair, length, equals + 1, sizes_at(sizes, i));
    tool_error("--sizes: '%.*s' is not a size; there are: seq_q, seq_kv, seq_new, num_rows, total_q, total_kv, "
               "num_pages, max_pages, mask_seq_kv, bias_seq_kv, rotary_positions, rotary_batch_stride",
               (int)(equals - pair), pair);
    return false;
}

bool sizes_parse(const char *text, call_sizes *sizes) {
    for (const char *pair = text; *pair;) {
        const size_t length = strcspn(pair, ",");
        if (!parse_pair(pair, length, sizes)) return false;
        pair += length;
        if (*pair == ',') pair++;
    }
    return true;
}

const char *sizes_print(const call_sizes *sizes, char text[SIZES_TEXT]) {
    call_sizes copy = *sizes;
    size_t length = 0;
    text[0] = '\0';
    for (int i = 0; i < NUM_CALL_SIZES; i++)
        if (*sizes_at(&copy, i) != ATTUNE_NOT_SET)
            length += (size_t)snprintf(text + length, SIZES_TEXT - length, "%s%s=%lld", length ? "," : "",
                                       fields[i].name, (long long)*sizes_at(&copy, i));
    return text;
}

void sizes_apply(const call_sizes *sizes, attune_arguments *arguments) {
    call_sizes copy = *sizes;
    for (int i = 0; i < NUM_CALL_SIZES; i++)
        if (*sizes_at(&copy, i) != ATTUNE_NOT_SET)
            memcpy((char *)arguments + fields[i].of_arguments, sizes_at(&copy, i), sizeof(int64_t));
}
