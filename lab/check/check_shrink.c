/* Makes a failing case small: reduces sizes and drops features as long as it fails in the same way. */
#include "check/check_case.h"
#include "problem_fields.h"
#include "schedule_fields.h"

#include <string.h>

/* ---- Sizes ---- */

/* Integers of the problem, then sizes of the call; the other fields have numbers, too, but no size. */
enum { CALL_SEQ_Q = MHA_NUM_FIELDS, CALL_SEQ_KV, CALL_SEQ_NEW, NUM_SIZES = MHA_NUM_FIELDS + NUM_CALL_SIZES };

static int64_t *size_at(check_case *c, int number) {
    if (number >= MHA_NUM_FIELDS) return sizes_at(&c->sizes, number - MHA_NUM_FIELDS);
    const mha_field *field = &mha_fields[number];
    const bool is_size = field->kind == MHA_FIELD_INT || field->kind == MHA_FIELD_SIZE;
    return is_size ? mha_field_at(&c->problem, field) : NULL;
}

/* How small it may get. Without it is another move. Rotated columns come in pairs. */
static int64_t least_of(int number) {
    if (number >= MHA_NUM_FIELDS || mha_fields[number].least < 0) return 0;
    return number == MHA_ID_rotary_dim ? 2 : 1;
}

/* The dims of masks follow the sizes that they cover. */
static void follow(int64_t dims[4], int dim, int64_t before, int64_t after) {
    if (dims[dim] == before && before > 1) dims[dim] = after;
}

static void follow_sizes(attune_problem *p, const attune_problem *before) {
    const int64_t old[4] = {before->batch, before->num_heads, before->seq_q, before->seq_kv};
    const int64_t now[4] = {p->batch, p->num_heads, p->seq_q, p->seq_kv};
    for (int d = 0; d < 4; d++) {
        if (old[d] == now[d]) continue;
        follow(p->attn_mask_dims, d, old[d], now[d]);
        follow(p->attn_bias_dims, d, old[d], now[d]);
    }
}

static void shrink_size(check_case *c, int number, bool by_half) {
    int64_t *const size = size_at(c, number);
    const int64_t least = least_of(number), step = number == MHA_ID_rotary_dim ? 2 : 1;
    const attune_problem before = c->problem;
    if (!size || *size <= least) return;
    const int64_t smaller = by_half ? *size / 2 / step * step : *size - step;
    *size = smaller < least ? least : smaller;
    follow_sizes(&c->problem, &before);
}

/* All lengths at once: some features tie them together. */
static void shrink_lengths(check_case *c, bool by_half) {
    static const int lengths[] = {MHA_ID_seq_q, MHA_ID_seq_kv, MHA_ID_seq_new, CALL_SEQ_Q, CALL_SEQ_KV, CALL_SEQ_NEW};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) shrink_size(c, lengths[i], by_half);
}

/* ---- Features ---- */

/* Gives a field its default, except for those that a text has anyway. */
static void drop_field(check_case *c, const mha_field *field) {
    const attune_problem before = c->problem;
    if (field->always || field == &mha_fields[MHA_ID_op]) return;
    mha_field_reset(&c->problem, field);
    follow_sizes(&c->problem, &before);
    if (!c->problem.has_softmax_scale) c->sizes.softmax_scale = ATTUNE_DEFAULT_SCALE;
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

/* Moves other than smaller sizes and fields at their defaults. false when there are no more. */
static bool simplify_other(check_case *c, int move) {
    attune_problem *const p = &c->problem;
    int64_t none = 0;
    switch (move) {
    case 0: set_heads(p, p->num_kv_heads ? p->num_heads / p->num_kv_heads : 1, p->num_kv_heads ? 1 : 0); return true;
    case 1: set_heads(p, p->num_kv_heads ? p->num_kv_heads : 1, p->num_kv_heads); return true;
    case 2: settle_length(&p->seq_q, &c->sizes.seq_q, &p->max_seq_q); return true;
    case 3: settle_length(&p->seq_kv, &c->sizes.seq_kv, &p->max_seq_kv); return true;
    case 4: settle_length(&p->seq_new, &c->sizes.seq_new, &none); return true;
    case 5: settle_length(&p->num_rows, &c->sizes.num_rows, &none); return true;
    case 6: c->sizes.rotary_batch_stride = ATTUNE_NOT_SET; return true;
    case 7: c->threads = 1; return true;
    case 8: c->ftz = false; return true;
    case 9: c->inputs = INPUT_ORDINARY; return true;
    case 10:
        if (p->head_dim_v > p->head_dim) p->head_dim_v = p->head_dim;
        return true;
    case 11: shrink_lengths(c, true); return true;
    case 12: shrink_lengths(c, false); return true;
    case 13:
        if (p->embed_dim && !p->head_dim) p->head_dim = p->embed_dim / p->num_heads;
        return true;
    default: break;
    }
    /* The dims of masks one by one. */
    const int dim = move - 14;
    int64_t *const dims = dim < 4 ? p->attn_mask_dims : p->attn_bias_dims;
    if (dim < 8 && dims[3]) dims[dim % 4] = 1;
    /* Sizes that the call may leave out. */
    if (dim >= 8 && dim < 8 + NUM_CALL_SIZES) *sizes_at(&c->sizes, dim - 8) = ATTUNE_NOT_SET;
    return dim < 8 + NUM_CALL_SIZES || check_shrink_function(p, dim - 8 - NUM_CALL_SIZES);
}

/* Step `move` of the ways to make a case simpler; false when there are no more, *changed says whether it did. */
static bool simplify(check_case *c, int move, bool *changed) {
    check_case before;
    bool known = true;
    memcpy(&before, c, sizeof before);
    if (move < MHA_NUM_FIELDS)
        drop_field(c, &mha_fields[move]);
    else if (move < MHA_NUM_FIELDS + 2 * NUM_SIZES)
        shrink_size(c, (move - MHA_NUM_FIELDS) / 2, move % 2 == MHA_NUM_FIELDS % 2);
    else
        known = simplify_other(c, move - MHA_NUM_FIELDS - 2 * NUM_SIZES);
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

/* Each page that is written must belong to one sequence. With too few pages sequences share them, and the reference and
 * the kernel may write them in different orders. */
static bool shares_written_pages(const check_case *c) {
    const attune_problem *const p = &c->problem;
    return p->page_size && p->seq_new && c->sizes.num_pages < p->batch * c->sizes.max_pages;
}

static void leave_choices(mha_schedule *s) {
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++)
        if (mha_schedule_is_choice(&mha_schedule_fields[i]))
            *mha_schedule_at(s, mha_schedule_fields[i].word) = MHA_SCHEDULE_AUTO;
}

/* A smaller problem may need a smaller schedule; a case is only worth running if it is legal. */
static bool make_legal(check_machine *machine, check_case *c) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    mha_schedule *const s = &c->schedule;
    const attune_problem *const p = &c->problem;
    if (!context || attune_problem_check(p) != ATTUNE_OK || !has_tensors(c) || shares_written_pages(c)) return false;
    if (attune_schedule_choose(context, p, mha_schedule_text(s).text, NULL, 0) == ATTUNE_OK) return true;
    if (p->seq_kv > 0 && s->score_keys > p->seq_kv) {
        s->score_keys = (int32_t)p->seq_kv;
        s->kv_tile = s->kv_tile / s->score_keys * s->score_keys;
    }
    while (s->score_columns > 1 && p->head_dim % s->score_columns) s->score_columns--;
    if (p->head_dim_v && s->value_columns > p->head_dim_v) s->value_columns = (int32_t)p->head_dim_v;
    leave_choices(s);
    if (attune_schedule_choose(context, p, mha_schedule_text(s).text, NULL, 0) == ATTUNE_OK) return true;
    return check_take_schedule(context, c, NULL);
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
