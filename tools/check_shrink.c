/* Makes a failing case small: reduces sizes and drops features as long as it fails in the same way. */
#include "check_case.h"

#include <string.h>

/* ---- Sizes ---- */

enum { IN_PROBLEM = 0, IN_SIZES = 1 };

/* A size, where it is and how small it may get. */
typedef struct size_field {
    int where;
    size_t offset;
    int64_t least;
} size_field;

#define OF_PROBLEM(name, least) {IN_PROBLEM, offsetof(attune_problem, name), least}
#define OF_CALL(name)           {IN_SIZES, offsetof(call_sizes, name), 0}
static const size_field size_fields[] = {
    OF_PROBLEM(batch, 1),
    OF_PROBLEM(seq_q, 1),
    OF_PROBLEM(seq_kv, 1),
    OF_PROBLEM(head_dim, 1),
    OF_PROBLEM(head_dim_v, 1),
    OF_PROBLEM(seq_new, 1),
    OF_PROBLEM(num_rows, 1),
    OF_PROBLEM(num_parts, 1),
    OF_PROBLEM(page_size, 1),
    OF_PROBLEM(rotary_dim, 2),
    OF_PROBLEM(window_left, 0),
    OF_PROBLEM(window_right, 0),
    OF_PROBLEM(global_tokens, 1),
    OF_PROBLEM(causal_offset, 0),
    OF_PROBLEM(embed_dim, 1),
    OF_PROBLEM(kv_embed_dim, 1),
    OF_PROBLEM(v_embed_dim, 1),
    OF_PROBLEM(out_dim, 1),
    OF_PROBLEM(low_rank, 1),
    OF_CALL(seq_q),
    OF_CALL(seq_kv),
    OF_CALL(seq_new),
    OF_CALL(num_rows),
    OF_CALL(total_q),
    OF_CALL(total_kv),
    OF_CALL(num_pages),
    OF_CALL(max_pages),
    OF_CALL(mask_seq_kv),
    OF_CALL(bias_seq_kv),
    OF_CALL(rotary_positions),
};
enum { NUM_SIZES = sizeof size_fields / sizeof *size_fields };

static int64_t *size_at(check_case *c, int field) {
    char *const base = size_fields[field].where == IN_SIZES ? (char *)&c->sizes : (char *)&c->problem;
    return (int64_t *)(void *)(base + size_fields[field].offset);
}

/* The dims of masks follow the sizes that they cover. */
static void follow(int64_t dims[4], int dim, int64_t before, int64_t after) {
    if (dims[dim] == before && before > 1) dims[dim] = after;
}

static void resize(check_case *c, int field, int64_t value) {
    attune_problem *const p = &c->problem;
    const attune_problem before = *p;
    *size_at(c, field) = value;
    const int64_t old[4] = {before.batch, before.num_heads, before.seq_q, before.seq_kv};
    const int64_t now[4] = {p->batch, p->num_heads, p->seq_q, p->seq_kv};
    for (int d = 0; d < 4; d++) {
        if (old[d] == now[d]) continue;
        follow(p->attn_mask_dims, d, old[d], now[d]);
        follow(p->attn_bias_dims, d, old[d], now[d]);
    }
}

static void shrink_size(check_case *c, int field, bool by_half) {
    const int64_t value = *size_at(c, field), least = size_fields[field].least;
    if (value <= least) return;
    /* Rotated columns come in pairs. */
    const int64_t step = size_fields[field].offset == offsetof(attune_problem, rotary_dim) ? 2 : 1;
    const int64_t smaller = by_half ? value / 2 / step * step : value - step;
    resize(c, field, smaller < least ? least : smaller);
}

/* Both lengths at once: some features tie them together. */
static void shrink_lengths(check_case *c, bool by_half) {
    for (int field = 0; field < NUM_SIZES; field++) {
        const size_field *const f = &size_fields[field];
        const bool is_length = f->where == IN_PROBLEM ? f->offset == offsetof(attune_problem, seq_q) ||
                                                            f->offset == offsetof(attune_problem, seq_kv) ||
                                                            f->offset == offsetof(attune_problem, seq_new)
                                                      : f->offset <= offsetof(call_sizes, seq_new);
        if (is_length) shrink_size(c, field, by_half);
    }
}

/* ---- Features ---- */

#define FLAG(name) offsetof(attune_problem, name)
static const size_t flags[] = {
    FLAG(is_causal),        FLAG(has_lse),
    FLAG(has_alibi_slopes), FLAG(has_sinks),
    FLAG(has_kv_lens),      FLAG(has_causal_offsets),
    FLAG(is_ragged),        FLAG(v_in_k),
    FLAG(short_masks),      FLAG(rotary_interleaved),
    FLAG(has_position_ids), FLAG(weights_average),
    FLAG(has_row_ids),      FLAG(reproducible),
    FLAG(causal_align),     FLAG(dtype),
    FLAG(k_dtype),          FLAG(v_dtype),
    FLAG(bias_dtype),       FLAG(softmax_precision),
    FLAG(weights_mode),     FLAG(low_rank_heads),
    FLAG(low_rank_shared),  FLAG(is_cross),
    FLAG(kv_projected),     FLAG(no_out_projection),
    FLAG(w_dtype),          FLAG(k_scales),
    FLAG(v_scales),
};
static const size_t wide[] = {FLAG(causal_offset), FLAG(global_tokens), FLAG(page_size),  FLAG(max_seq_q),
                              FLAG(max_seq_kv),    FLAG(seq_new),       FLAG(rotary_dim), FLAG(embed_dim),
                              FLAG(kv_embed_dim),  FLAG(v_embed_dim),   FLAG(out_dim),    FLAG(low_rank)};
static const struct {
    size_t offset, bytes;
} arrays[] = {
#define ARRAY(name) {offsetof(attune_problem, name), sizeof(((attune_problem *)NULL)->name)}
    ARRAY(q_strides),       ARRAY(k_strides),         ARRAY(v_strides),         ARRAY(out_strides),
    ARRAY(lse_strides),     ARRAY(attn_mask_strides), ARRAY(attn_bias_strides), ARRAY(k_new_strides),
    ARRAY(v_new_strides),   ARRAY(weights_strides),   ARRAY(attn_mask_dims),    ARRAY(attn_bias_dims),
    ARRAY(x_strides),       ARRAY(x_kv_strides),      ARRAY(x_v_strides),       ARRAY(k_scale_strides),
    ARRAY(v_scale_strides),
#undef ARRAY
};
enum {
    NUM_FLAGS = sizeof flags / sizeof *flags,
    NUM_WIDE = sizeof wide / sizeof *wide,
    NUM_ARRAYS = sizeof arrays / sizeof *arrays
};

static void drop_feature(check_case *c, int number) {
    char *const base = (char *)&c->problem;
    if (number < NUM_FLAGS)
        memset(base + flags[number], 0, sizeof(int));
    else if (number < NUM_FLAGS + NUM_WIDE)
        memset(base + wide[number - NUM_FLAGS], 0, sizeof(int64_t));
    else
        memset(base + arrays[number - NUM_FLAGS - NUM_WIDE].offset, 0, arrays[number - NUM_FLAGS - NUM_WIDE].bytes);
    if (!c->problem.short_masks) c->sizes.mask_seq_kv = c->sizes.bias_seq_kv = ATTUNE_NOT_SET;
}

/* Makes a length known when compiling instead of at run time. */
static void settle_length(int64_t *of_problem, int64_t *of_call, int64_t *bound) {
    if (*of_problem != ATTUNE_DYNAMIC || *of_call <= 0) return;
    *of_problem = *of_call;
    *of_call = ATTUNE_NOT_SET;
    *bound = 0;
}

static void set_heads(attune_problem *p, int64_t heads, int64_t kv_heads) {
    follow(p->attn_mask_dims, 1, p->num_heads, heads);
    follow(p->attn_bias_dims, 1, p->num_heads, heads);
    p->num_heads = heads;
    p->num_kv_heads = kv_heads;
}

/* Moves other than smaller sizes and fields set to 0. false when there are no more. */
static bool simplify_other(check_case *c, int move) {
    attune_problem *const p = &c->problem;
    int64_t none = 0;
    switch (move) {
    case 0: set_heads(p, p->num_kv_heads ? p->num_heads / p->num_kv_heads : 1, p->num_kv_heads ? 1 : 0); return true;
    case 1: set_heads(p, p->num_kv_heads ? p->num_kv_heads : 1, p->num_kv_heads); return true;
    case 2:
        p->softmax_scale = c->sizes.softmax_scale = ATTUNE_DEFAULT_SCALE;
        p->has_softmax_scale = 0;
        return true;
    case 3: p->logits_soft_cap = 0; return true;
    case 4: p->window_left = -1; return true;
    case 5: p->window_right = -1; return true;
    case 6: settle_length(&p->seq_q, &c->sizes.seq_q, &p->max_seq_q); return true;
    case 7: settle_length(&p->seq_kv, &c->sizes.seq_kv, &p->max_seq_kv); return true;
    case 8: settle_length(&p->seq_new, &c->sizes.seq_new, &none); return true;
    case 9: settle_length(&p->num_rows, &c->sizes.num_rows, &none); return true;
    case 10: c->sizes.rotary_batch_stride = ATTUNE_NOT_SET; return true;
    case 11: c->threads = 1; return true;
    case 12: c->ftz = false; return true;
    case 13: c->inputs = INPUT_ORDINARY; return true;
    case 14:
        if (p->head_dim_v > p->head_dim) p->head_dim_v = p->head_dim;
        return true;
    case 15: shrink_lengths(c, true); return true;
    case 16: shrink_lengths(c, false); return true;
    case 17:
        if (p->embed_dim && !p->head_dim) p->head_dim = p->embed_dim / p->num_heads;
        return true;
    default: break;
    }
    /* The dims of masks one by one. */
    const int dim = move - 18;
    int64_t *const dims = dim < 4 ? p->attn_mask_dims : p->attn_bias_dims;
    if (dim < 8 && dims[3]) dims[dim % 4] = 1;
    /* Sizes that the call may leave out. */
    if (dim >= 8 && dim < 8 + NUM_CALL_SIZES) *sizes_at(&c->sizes, dim - 8) = ATTUNE_NOT_SET;
    return dim < 8 + NUM_CALL_SIZES;
}

/* Step `move` of the ways to make a case simpler; false when there are no more, *changed says whether it did. */
static bool simplify(check_case *c, int move, bool *changed) {
    enum { NUM_FEATURES = NUM_FLAGS + NUM_WIDE + NUM_ARRAYS };
    check_case before;
    bool known = true;
    memcpy(&before, c, sizeof before);
    if (move < NUM_FEATURES)
        drop_feature(c, move);
    else if (move < NUM_FEATURES + 2 * NUM_SIZES)
        shrink_size(c, (move - NUM_FEATURES) / 2, move % 2 == NUM_FEATURES % 2);
    else
        known = simplify_other(c, move - NUM_FEATURES - 2 * NUM_SIZES);
    *changed = memcmp(&before, c, sizeof before) != 0;
    return known;
}

/* ---- Legality ---- */

static bool has_tensors(const check_case *c) {
    attune_tensor list[REF_MAX_TENSORS];
    attune_arguments arguments = {.struct_size = sizeof arguments};
    size_t count = 0;
    if (attune_arguments_init(&arguments, &c->problem) != ATTUNE_OK) return false;
    sizes_apply(&c->sizes, &arguments);
    return attune_tensors(&c->problem, &arguments, list, REF_MAX_TENSORS, &count) == ATTUNE_OK;
}

/* Each page that is written must belong to one entry. With too few pages entries share them, and the reference and the
 * kernel may write them in different orders. */
static bool shares_written_pages(const check_case *c) {
    const attune_problem *const p = &c->problem;
    return p->page_size && p->seq_new && c->sizes.num_pages < p->batch * c->sizes.max_pages;
}

/* A smaller problem may need a smaller schedule; a case is only worth running if it is legal. */
static bool make_legal(check_machine *machine, check_case *c) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    attune_schedule *const s = &c->schedule;
    const attune_problem *const p = &c->problem;
    if (!context || attune_problem_check(p) != ATTUNE_OK || !has_tensors(c) || shares_written_pages(c)) return false;
    if (attune_schedule_check(context, p, s) == ATTUNE_OK) return true;
    if (p->seq_kv > 0 && s->score_rows > p->seq_kv) {
        s->score_rows = (int32_t)p->seq_kv;
        s->kv_tile = s->kv_tile / s->score_rows * s->score_rows;
    }
    while (s->strategy == ATTUNE_Q_LANES && s->score_unroll > 1 && p->head_dim % s->score_unroll) s->score_unroll--;
    if (p->head_dim_v && s->value_rows > p->head_dim_v) s->value_rows = (int32_t)p->head_dim_v;
    if (attune_schedule_check(context, p, s) == ATTUNE_OK) return true;
    return attune_schedule_choose(context, p, s) == ATTUNE_OK;
}

/* Whether two messages of the library are equal except for their numbers. With another message the smaller case fails
 * for another reason. */
static bool is_same_reason(const char *a, const char *b) {
    static const char digits[] = "0123456789";
    for (;;) {
        a += strspn(a, digits);
        b += strspn(b, digits);
        if (*a != *b) return false;
        if (!*a) return true;
        a++;
        b++;
    }
}

static bool fails_alike(check_machine *machine, const check_case *c, check_outcome outcome, const char *reason,
                        char other[ATTUNE_MESSAGE_BYTES]) {
    const bool is_said = outcome == CHECK_NOT_COMPILED || outcome == CHECK_NOT_RUN || outcome == CHECK_NOT_INTERPRETED;
    return check_run(machine, c, NULL, other) == outcome && (!is_said || is_same_reason(reason, other));
}

void check_shrink(check_machine *machine, check_case *c, check_outcome outcome, char reason[ATTUNE_MESSAGE_BYTES]) {
    char other[ATTUNE_MESSAGE_BYTES];
    for (bool progress = true; progress;) {
        progress = false;
        check_case smaller = *c;
        bool changed = false;
        for (int move = 0; simplify(&smaller, move, &changed); move++, smaller = *c) {
            if (!changed || !make_legal(machine, &smaller)) continue;
            if (!fails_alike(machine, &smaller, outcome, reason, other)) continue;
            *c = smaller;
            memcpy(reason, other, sizeof other);
            progress = true;
        }
    }
}
