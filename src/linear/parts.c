/* Reads lengths and slots of a step into one list, and refuses those that are out of range or that two sequences
 * share. */
#include "linear/parts.h"

#include <stdlib.h>

static attune_status check_sizes(const lin_sequences *s, at_error *err) {
    if (at_check_size("batch", s->batch, 0, INT32_MAX, err) || at_check_size("seq", s->seq, 0, INT32_MAX, err) ||
        at_check_size("num_states", s->num_states, 0, INT32_MAX, err))
        return err->status;
    if (!s->state_ids && s->num_states && s->num_states < s->batch)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "num_states is %lld for a batch of %lld without state_ids",
                       (long long)s->num_states, (long long)s->batch);
    return ATTUNE_OK;
}

static attune_status find_lengths(const lin_sequences *s, lin_parts *p, at_error *err) {
    p->tokens = s->cu_seqlens ? 0 : s->seq;
    for (int64_t b = 0; b < s->batch; b++) {
        const int32_t first = s->cu_seqlens ? s->cu_seqlens[b] : 0;
        const int32_t end = s->cu_seqlens ? s->cu_seqlens[b + 1] : (int32_t)s->seq;
        if (first < 0 || end < first || (b == 0 && first && s->cu_seqlens))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "cu_seqlens[%lld] is %d and cu_seqlens[%lld] %d; it must rise "
                           "from 0",
                           (long long)b, first, (long long)b + 1, end);
        p->of[b][0] = first, p->of[b][1] = end, p->of[b][2] = (int32_t)b;
        if (end - first > p->longest) p->longest = end - first;
        p->all += end - first;
        if (s->cu_seqlens) p->tokens = end;
    }
    return ATTUNE_OK;
}

/* No two sequences have one state. */
static attune_status find_states(const lin_sequences *s, lin_parts *p, at_error *err) {
    p->states = s->num_states ? s->num_states : s->batch;
    if (!s->state_ids || !s->batch) return ATTUNE_OK;
    if (!s->num_states)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "num_states is 0; with state_ids it must be the number of states");
    uint8_t *const taken = calloc((size_t)(p->states + 7) / 8, 1);
    if (!taken) return at_fail_memory(err, (size_t)(p->states + 7) / 8);
    for (int64_t b = 0; b < s->batch && !err->status; b++) {
        const int32_t id = s->state_ids[b];
        if (id < 0 || id >= p->states) {
            at_fail(err, ATTUNE_INVALID_ARGUMENT, "state_ids[%lld] is %d; there are states from 0 to %lld",
                    (long long)b, id, (long long)p->states - 1);
        } else if (taken[id / 8] >> id % 8 & 1) {
            at_fail(err, ATTUNE_INVALID_ARGUMENT, "state_ids[%lld] is %d, which another sequence has, too",
                    (long long)b, id);
        } else {
            taken[id / 8] |= (uint8_t)(1 << id % 8);
            p->of[b][2] = id;
        }
    }
    free(taken);
    return err->status;
}

attune_status lin_find_parts(const lin_sequences *s, lin_parts *parts, at_error *err) {
    *parts = (lin_parts){.of = parts->few};
    if (check_sizes(s, err)) return err->status;
    if (s->batch > LIN_FEW_SEQUENCES && !(parts->of = malloc((size_t)s->batch * sizeof *parts->of)))
        return at_fail_memory(err, (size_t)s->batch * sizeof *parts->of);
    if (find_lengths(s, parts, err)) return err->status;
    return find_states(s, parts, err);
}

void lin_free_parts(lin_parts *parts) {
    if (parts->of != parts->few) free(parts->of);
}
