/* Counts visible keys in closed form: between corners of causality, window and lengths, their number is linear in the
 * query's position. */
#include "problem/problem_sight.h"
#include "base/integers.h"
#include "problem/problem.h"

bool mha_has_first_key(const attune_problem *p) { return p->window_left >= 0; }

bool mha_has_last_key(const attune_problem *p) { return p->is_causal || p->window_right >= 0; }

/* After the first keys, all queries with a window attend to the same number of keys. */
bool mha_sees_more_later(const attune_problem *p) {
    return p->is_causal && (p->window_left < 0 || 2 * p->window_left >= mha_usual_size(p->seq_kv, p->max_seq_kv));
}

bool mha_positions_matter(const attune_problem *p) {
    return mha_has_first_key(p) || mha_has_last_key(p) || p->has_alibi_slopes ||
           (p->rotary_dim && !p->has_position_ids);
}

/* Keys begin … end - 1; none if end <= begin. */
typedef struct span {
    int64_t begin, end;
} span;

/* The end of the keys that are visible by causality at position `at`. */
static int64_t end_at(const attune_problem *p, int64_t keys, int64_t at) {
    return p->is_causal ? max_of(0, min_of(at + 1, keys)) : keys;
}

/* Whether the query is global, so that the window does not limit it. */
static bool is_global(const attune_problem *p, int64_t at) { return p->global_tokens && at < p->global_tokens; }

/* The keys that are visible by causality and window. */
static span sight_at(const attune_problem *p, int64_t keys, int64_t at) {
    span s = {0, end_at(p, keys, at)};
    if (is_global(p, at)) return s;
    if (p->window_left >= 0) s.begin = max_of(0, at - p->window_left);
    if (p->window_right >= 0) s.end = min_of(s.end, at + p->window_right + 1);
    return s;
}

/* The end of the global keys that are visible. */
static int64_t globals_at(const attune_problem *p, int64_t keys, int64_t at) {
    return min_of(p->global_tokens, end_at(p, keys, at));
}

static int64_t count_of(span s, int64_t globals) { return globals + max_of(0, s.end - max_of(s.begin, globals)); }

static double keys_at(const attune_problem *p, int64_t keys, int64_t at) {
    return (double)count_of(sight_at(p, keys, at), globals_at(p, keys, at));
}

/* The first position after `at` that is a corner or next to one; at most `end`. */
static int64_t next_corner(const int64_t *corners, size_t count, int64_t at, int64_t end) {
    int64_t next = end;
    for (size_t i = 0; i < 3 * count; i++) {
        const int64_t position = corners[i / 3] - 1 + (int64_t)(i % 3);
        if (position > at) next = min_of(next, position);
    }
    return next;
}

/* The sum over positions begin … end - 1. Corners are positions where one of the minima in the number of keys changes
 * sides. Between two of them that number is linear in the position, so the sum is that of an arithmetic series. */
static double count_pairs(const attune_problem *p, int64_t keys, int64_t begin, int64_t end) {
    if (!mha_has_first_key(p) && !mha_has_last_key(p)) return (double)(end - begin) * (double)keys;
    const int64_t global = p->global_tokens, left = max_of(p->window_left, 0), right = max_of(p->window_right, 0);
    const int64_t corners[] = {
        -1, 0, global, keys - 1, left, global + left, keys + left, -1 - right, global - 1 - right, keys - 1 - right};
    double sum = 0;
    for (int64_t at = begin; at < end;) {
        const int64_t next = next_corner(corners, sizeof corners / sizeof *corners, at, end);
        sum += (double)(next - at) * (keys_at(p, keys, at) + keys_at(p, keys, next - 1)) / 2;
        at = next;
    }
    return sum;
}

/* Both ends of the visible range grow from query to query, except from the last global query to the next one. */
static void span_queries(const attune_problem *p, int64_t keys, int64_t first, int64_t last, span *some, span *all) {
    const span a = sight_at(p, keys, first), z = sight_at(p, keys, last);
    *some = (span){min_of(a.begin, z.begin), max_of(a.end, z.end)};
    *all = (span){max_of(a.begin, z.begin), min_of(a.end, z.end)};
    if (!is_global(p, first) || is_global(p, last)) return;
    some->end = max_of(some->end, sight_at(p, keys, p->global_tokens - 1).end);
    all->end = min_of(all->end, sight_at(p, keys, p->global_tokens).end);
}

attune_sight mha_sight_of_queries(const attune_problem *p, const mha_queries *q) {
    attune_sight sight = {.struct_size = sizeof sight};
    if (q->end <= q->begin || q->seq_kv <= 0) return sight;
    const int64_t base = mha_first_position(p, q->seq_q, q->seq_kv) + q->causal_offset;
    const int64_t first = base + q->begin, last = base + q->end - 1;
    span some, all;
    span_queries(p, q->seq_kv, first, last, &some, &all);
    sight.global_end = globals_at(p, q->seq_kv, last);
    sight.keys = count_of(some, sight.global_end);
    sight.pairs = count_pairs(p, q->seq_kv, first, last + 1);
    if (some.end > some.begin) sight.some_begin = some.begin, sight.some_end = some.end;
    if (all.end > all.begin) sight.all_begin = all.begin, sight.all_end = all.end;
    return sight;
}
