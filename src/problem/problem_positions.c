/* Causality, windows, global tokens, and where positions begin. */
#include "problem/problem.h"
#include "problem/problem_sight.h"

/* How far a query's last key can be after its position, and how far its first key before it. With bottom_right, the
 * number of keys cancels out of the former, and the number of queries out of the latter. */
static int64_t most_ahead(const attune_problem *p) {
    return (p->causal_align == ATTUNE_BOTTOM_RIGHT ? mha_most_queries(p) : mha_most_keys(p)) - 1 - p->causal_offset;
}

static int64_t most_behind(const attune_problem *p) {
    return (p->causal_align == ATTUNE_BOTTOM_RIGHT ? mha_most_keys(p) : mha_most_queries(p)) - 1 + p->causal_offset;
}

static void drop_what_hides_nothing(attune_problem *p) {
    const bool known = !p->has_causal_offsets;
    if (p->is_causal && known && most_ahead(p) <= 0) p->is_causal = 0;
    if (p->is_causal) p->window_right = -1; /* hidden already */
    if (known && p->window_left >= most_behind(p)) p->window_left = -1;
    if (known && p->window_right >= most_ahead(p)) p->window_right = -1;
    if (p->global_tokens >= mha_most_keys(p)) p->window_left = p->window_right = -1;
    if (p->window_left < 0 && p->window_right < 0) p->global_tokens = 0;
}

static bool is_in_range(int64_t offset) { return offset >= -(int64_t)MHA_MAX_SIZE && offset <= MHA_MAX_SIZE; }

/* If lengths are known, either alignment can express a position. The default alignment is canonical, unless its offset
 * is out of range. */
static attune_status fold_alignment(attune_problem *p, at_error *err) {
    if (mha_keys_follow_queries(p) && !p->has_kv_lens) p->causal_align = ATTUNE_BOTTOM_RIGHT; /* the base is 0 */
    if (p->seq_q < 0 || p->seq_kv < 0 || p->has_kv_lens) return ATTUNE_OK;
    const int64_t base = p->seq_kv - p->seq_q;
    if (p->causal_align == ATTUNE_TOP_LEFT) {
        if (!is_in_range(p->causal_offset - base)) return ATTUNE_OK;
        p->causal_align = ATTUNE_BOTTOM_RIGHT;
        p->causal_offset -= base;
        return ATTUNE_OK;
    }
    if (is_in_range(p->causal_offset + base)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "causal_offset + seq_kv - seq_q is %lld; it must be from -%d to %d",
                   (long long)(p->causal_offset + base), MHA_MAX_SIZE, MHA_MAX_SIZE);
}

static void forget_positions(attune_problem *p) {
    p->causal_align = ATTUNE_BOTTOM_RIGHT;
    p->causal_offset = 0;
    p->has_causal_offsets = 0;
}

/* If only causality needs positions, all diagonals before the first key are equivalent. */
static void join_diagonals(attune_problem *p) {
    const int64_t least = -(p->causal_align == ATTUNE_BOTTOM_RIGHT ? mha_most_keys(p) : mha_most_queries(p));
    const bool only_causal = p->is_causal && p->window_left < 0 && !p->has_alibi_slopes && !p->rotary_dim;
    if (only_causal && !p->has_causal_offsets && p->causal_offset < least) p->causal_offset = least;
}

attune_status mha_settle_positions(attune_problem *p, at_error *err) {
    if (!mha_positions_matter(p)) forget_positions(p);
    const attune_status status = fold_alignment(p, err);
    if (status) return status;
    drop_what_hides_nothing(p);
    if (!mha_positions_matter(p)) forget_positions(p);
    join_diagonals(p);
    return ATTUNE_OK;
}
