/* A table of names and offsets, by which sizes are parsed, compared with a problem and listed. */
#include "common/sizes.h"

#include "nearest.h"
#include "common/problem_text.h"

#include <errno.h>
#include <math.h>
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
    FIELD(num_ids),
#undef FIELD
};

const char *sizes_name(int index) { return fields[index].name; }

int64_t *sizes_at(call_sizes *sizes, int index) { return (int64_t *)((char *)sizes + fields[index].offset); }

static bool parse_value(const char *name, const char *value, int64_t *number) {
    char *end = NULL;
    errno = 0;
    *number = strtoll(value, &end, 10);
    if (end != value && !*end && errno == 0 && *number >= 0) return true;
    tool_error("--sizes: %s is '%s', which is not a whole number from 0 on", name, value);
    return false;
}

static bool parse_scale(const char *value, double *scale) {
    char *end = NULL;
    if (!isnan(*scale)) {
        tool_error("--sizes: softmax_scale is given twice");
        return false;
    }
    *scale = strtod(value, &end);
    if (end != value && !*end && isfinite(*scale)) return true;
    tool_error("--sizes: softmax_scale is '%s', which is not a number", value);
    return false;
}

static void refuse_name(const char *name) {
    at_nearest nearest = at_nearest_to(name, strlen(name));
    for (int i = 0; i < NUM_CALL_SIZES; i++) at_nearest_try(&nearest, fields[i].name);
    at_nearest_try(&nearest, "softmax_scale");
    if (nearest.word)
        tool_error("--sizes: '%s' is not a size; did you mean %s?", name, nearest.word);
    else
        tool_error("--sizes: '%s' is not a size; there are: seq_q, seq_kv, seq_new, num_rows, total_q, total_kv, "
                   "num_pages, max_pages, mask_seq_kv, bias_seq_kv, rotary_positions, rotary_batch_stride, num_ids, "
                   "softmax_scale",
                   name);
}

/* `given` has a bit for each size that the same text named before. */
static bool parse_pair(char *pair, call_sizes *sizes, uint32_t *given) {
    char *value = strchr(pair, '=');
    if (!value) {
        tool_error("--sizes: '%s' is not key=value", tool_trimmed(pair));
        return false;
    }
    *value++ = '\0';
    const char *const name = tool_trimmed(pair);
    if (strcmp(name, "softmax_scale") == 0) return parse_scale(tool_trimmed(value), &sizes->softmax_scale);
    for (int i = 0; i < NUM_CALL_SIZES; i++)
        if (strcmp(fields[i].name, name) == 0) {
            if (*given >> i & 1) {
                tool_error("--sizes: %s is given twice", name);
                return false;
            }
            *given |= UINT32_C(1) << i;
            return parse_value(name, tool_trimmed(value), sizes_at(sizes, i));
        }
    refuse_name(name);
    return false;
}

bool sizes_parse(const char *text, call_sizes *sizes) {
    char *const copy = strdup(text);
    if (!copy) tool_error("out of memory");
    bool good = copy != NULL;
    uint32_t given = 0;
    for (char *pair = copy, *end; good && pair && *pair; pair = end) {
        end = strchr(pair, ',');
        if (end) *end++ = '\0';
        good = parse_pair(pair, sizes, &given);
    }
    free(copy);
    return good;
}

/* ---- Against a problem ---- */

/* The problem's own field for a size, 0 where it has none. */
static int64_t size_of_problem(const attune_problem *p, int index) {
    switch (fields[index].offset) {
    case offsetof(call_sizes, seq_q): return p->seq_q;
    case offsetof(call_sizes, seq_kv): return p->seq_kv;
    case offsetof(call_sizes, seq_new): return p->seq_new;
    case offsetof(call_sizes, num_rows): return p->num_rows;
    case offsetof(call_sizes, num_ids): return p->num_ids;
    case offsetof(call_sizes, mask_seq_kv): return p->attn_mask_dims[3];
    case offsetof(call_sizes, bias_seq_kv): return p->attn_bias_dims[3];
    case offsetof(call_sizes, total_q): return p->is_ragged ? ATTUNE_DYNAMIC : 0;
    case offsetof(call_sizes, total_kv): return p->is_ragged && !p->page_size ? ATTUNE_DYNAMIC : 0;
    case offsetof(call_sizes, num_pages):
    case offsetof(call_sizes, max_pages): return p->page_size ? ATTUNE_DYNAMIC : 0;
    default: return p->rotary_dim ? ATTUNE_DYNAMIC : 0;
    }
}

bool sizes_are_open(const attune_problem *p, int index) { return size_of_problem(p, index) == ATTUNE_DYNAMIC; }

bool sizes_check(const call_sizes *sizes, const attune_problem *problem) {
    attune_problem p = *problem;
    call_sizes copy = *sizes;
    problem_fill_defaults(&p);
    for (int i = 0; i < NUM_CALL_SIZES; i++) {
        const int64_t given = *sizes_at(&copy, i), fixed = size_of_problem(&p, i);
        if (given == ATTUNE_NOT_SET || fixed == ATTUNE_DYNAMIC || (fixed && given == fixed)) continue;
        if (fixed)
            tool_error("--sizes: %s is %lld, but the problem or its files fix it at %lld", fields[i].name,
                       (long long)given, (long long)fixed);
        else
            tool_error("--sizes: %s is %lld, but the problem has no such size", fields[i].name, (long long)given);
        return false;
    }
    if (isnan(sizes->softmax_scale) || p.has_softmax_scale) return true;
    tool_error("--sizes: softmax_scale is %g, but the problem fixes it; softmax_scale=dynamic leaves it open",
               sizes->softmax_scale);
    return false;
}

/* Only those that the problem leaves open. */
static call_sizes open_sizes(const call_sizes *sizes, const attune_problem *problem) {
    attune_problem p = *problem;
    call_sizes own = *sizes;
    problem_fill_defaults(&p);
    for (int i = 0; i < NUM_CALL_SIZES; i++)
        if (!sizes_are_open(&p, i)) *sizes_at(&own, i) = ATTUNE_NOT_SET;
    if (!p.has_softmax_scale) own.softmax_scale = ATTUNE_DEFAULT_SCALE;
    return own;
}

call_sizes sizes_settled(const call_sizes *given, const attune_problem *problem) {
    enum { FARTHEST = 7 }; /* what causal_offsets are filled with at most */
    attune_problem p = *problem;
    call_sizes s = open_sizes(given, problem);
    int64_t longest = 0;
    if (!p.rotary_dim || s.rotary_positions != ATTUNE_NOT_SET) return s;
    problem_fill_defaults(&p);
    const int64_t lengths[] = {p.seq_q, p.seq_kv, p.seq_new, p.max_seq_q, p.max_seq_kv,
                               s.seq_q, s.seq_kv, s.seq_new, s.total_q,   s.total_kv};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        if (lengths[i] > longest) longest = lengths[i];
    s.rotary_positions = longest + (p.causal_offset > 0 ? p.causal_offset : 0) + FARTHEST;
    return s;
}

/* ---- Text, and the call ---- */

const char *sizes_print(const call_sizes *sizes, char text[SIZES_TEXT]) {
    call_sizes copy = *sizes;
    size_t length = 0;
    text[0] = '\0';
    for (int i = 0; i < NUM_CALL_SIZES; i++)
        if (*sizes_at(&copy, i) != ATTUNE_NOT_SET)
            length += (size_t)snprintf(text + length, SIZES_TEXT - length, "%s%s=%lld", length ? "," : "",
                                       fields[i].name, (long long)*sizes_at(&copy, i));
    if (!isnan(sizes->softmax_scale))
        snprintf(text + length, SIZES_TEXT - length, "%ssoftmax_scale=%.17g", length ? "," : "", sizes->softmax_scale);
    return text;
}

void sizes_apply(const call_sizes *sizes, attune_arguments *arguments) {
    call_sizes copy = *sizes;
    for (int i = 0; i < NUM_CALL_SIZES; i++)
        if (*sizes_at(&copy, i) != ATTUNE_NOT_SET)
            memcpy((char *)arguments + fields[i].of_arguments, sizes_at(&copy, i), sizeof(int64_t));
    arguments->softmax_scale = sizes->softmax_scale;
}
