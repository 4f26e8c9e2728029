/* Tensors without rows of queries or keys: biases, angles, weights, and tensors that count as a whole. */
#include "base/integers.h"
#include "base/plain_text.h"
#include "call/call_debug.h"

static const char *element_at(const at_debug *d, size_t place, const int64_t index[4]) {
    const mha_tensor *const t = &d->s->tensors[place];
    int64_t at = 0;
    for (int i = 0; i < t->rank; i++) at += index[i] * d->settled->strides[place][i];
    return (const char *)d->buffers[place] + at * d->s->element[place];
}

static at_debug_value wrong_at(const at_debug *d, size_t place, const int64_t index[4]) {
    const mha_tensor *const t = &d->s->tensors[place];
    const at_debug_value value = at_debug_value_of(t->elem, element_at(d, place, index));
    return (unsigned)value & at_debug_forbidden(t) ? value : AT_FINITE;
}

/* Indices from `begin` to before `end`, the last one fastest. */
typedef struct box {
    int64_t begin[4], end[4];
} box;

static bool is_empty(const box *all) {
    for (int i = 0; i < 4; i++)
        if (all->begin[i] >= all->end[i]) return true;
    return false;
}

/* false: that was the last one. */
static bool step(const box *all, int64_t index[4]) {
    for (int i = 3; i >= 0; i--) {
        if (++index[i] < all->end[i]) return true;
        index[i] = all->begin[i];
    }
    return false;
}

/* ---- All elements ---- */

attune_status at_debug_check_whole(const at_debug *d, size_t place, at_error *err) {
    const mha_tensor *const t = &d->s->tensors[place];
    box all = {.end = {1, 1, 1, 1}};
    int64_t index[4] = {0};
    for (int i = 0; i < t->rank; i++) all.end[i] = d->size[t->dims[i]];
    if (is_empty(&all)) return ATTUNE_OK;
    do {
        const at_debug_value value = wrong_at(d, place, index);
        if (value) return at_debug_fail(err, t, index, value, "");
    } while (step(&all, index));
    return ATTUNE_OK;
}

/* ---- The bias ---- */

/* Whether an element belongs to a query that attends to the key. A dim that all share has one index. */
static bool bias_counts(const at_debug *d, const mha_tensor *t, const at_debug_sequence *q, const int64_t index[4]) {
    const int64_t whole[4] = {1, d->size[MHA_HEADS], q->queries, d->p->kv_ids ? d->size[MHA_NUM_IDS] : q->keys};
    box all = {.end = {1, 1, 1, 1}};
    for (int i = 1; i < 4; i++) {
        const bool is_same = mha_is_broadcast(d->p, t, i);
        all.begin[i] = is_same ? 0 : index[i];
        all.end[i] = is_same ? whole[i] : index[i] + 1;
    }
    int64_t at[4] = {0, all.begin[1], all.begin[2], all.begin[3]};
    if (is_empty(&all)) return false;
    do
        if (at_debug_scores(d, q, at[1], at[2], at[3])) return true;
    while (step(&all, at));
    return false;
}

/* What lies within the lengths of one sequence. */
static attune_status check_bias_of(const at_debug *d, size_t place, const at_debug_sequence *q, at_error *err) {
    const mha_tensor *const t = &d->s->tensors[place];
    const int64_t columns = d->p->kv_ids ? d->size[MHA_BIAS_KV] : min_of(q->keys, d->size[MHA_BIAS_KV]);
    const int64_t whole[4] = {1, d->size[MHA_HEADS], q->queries, columns};
    box all = {.end = {1, 1, 1, 1}};
    for (int i = 1; i < 4; i++) all.end[i] = mha_is_broadcast(d->p, t, i) ? min_of(whole[i], 1) : whole[i];
    all.begin[0] = mha_is_broadcast(d->p, t, 0) ? 0 : q->number;
    all.end[0] = all.begin[0] + 1;
    int64_t index[4] = {all.begin[0]};
    if (is_empty(&all)) return ATTUNE_OK;
    do {
        const at_debug_value value = wrong_at(d, place, index);
        if (value && bias_counts(d, t, q, index)) return at_debug_fail(err, t, index, value, "");
    } while (step(&all, index));
    return ATTUNE_OK;
}

attune_status at_debug_check_bias(const at_debug *d, size_t place, at_error *err) {
    for (int64_t b = 0; b < d->size[MHA_BATCH]; b++) {
        const at_debug_sequence q = at_debug_sequence_of(d, b);
        if (check_bias_of(d, place, &q, err)) return err->status;
    }
    return ATTUNE_OK;
}

/* ---- cos and sin ---- */

static attune_status check_angle(const at_debug *d, size_t place, int64_t b, int64_t position, at_error *err) {
    const mha_tensor *const t = &d->s->tensors[place];
    const bool is_shared = d->settled->strides[place][0] == 0;
    int64_t index[4] = {is_shared ? 0 : b, position, 0, 0};
    char what[96];
    for (; index[2] < d->size[MHA_ROTARY_HALF]; index[2]++) {
        const at_debug_value value = wrong_at(d, place, index);
        if (!value) continue;
        at_print(what, sizeof what, ": position %lld occurs in sequence %lld", (long long)position, (long long)b);
        return at_debug_fail(err, t, index, value, what);
    }
    return ATTUNE_OK;
}

/* Keys are rotated in each call, unless they are appended: then new ones are. With position_ids keys have those of the
 * queries. */
static attune_status check_angles_of(const at_debug *d, size_t place, const at_debug_sequence *q, at_error *err) {
    const int64_t ids = d->cu_q ? d->cu_q[q->number] : q->number * d->size[MHA_SEQ_Q];
    for (int64_t i = 0; i < q->queries; i++)
        if (check_angle(d, place, q->number, d->ids ? d->ids[ids + i] : q->position + i, err)) return err->status;
    if (d->ids || !mha_rotates_keys(d->p)) return ATTUNE_OK;
    for (int64_t j = d->p->seq_new ? q->keys - q->new_keys : 0; j < q->keys; j++)
        if (check_angle(d, place, q->number, j, err)) return err->status;
    return ATTUNE_OK;
}

attune_status at_debug_check_angles(const at_debug *d, size_t place, at_error *err) {
    for (int64_t b = 0; b < d->size[MHA_BATCH]; b++) {
        const at_debug_sequence q = at_debug_sequence_of(d, b);
        if (check_angles_of(d, place, &q, err)) return err->status;
    }
    return ATTUNE_OK;
}

/* ---- Packed weights ---- */

/* An element of a blob, by the layout of problem/weights_layout.h. */
typedef struct packed_place {
    const mha_packed_section *section;
    mha_projection projection;
    const char *row; /* of a panel */
    int64_t number, first_output, outputs;
} packed_place;

static const char *const projections[MHA_NUM_PROJECTIONS] = {
    [MHA_PROJECT_Q] = "q", [MHA_PROJECT_K] = "k", [MHA_PROJECT_V] = "v", [MHA_PROJECT_OUT] = "out"};

static attune_status fail_packed(const packed_place *at, int64_t column, int64_t half, at_debug_value value,
                                 at_error *err) {
    const mha_packed_section *const s = at->section;
    const char *const name = projections[at->projection], *const is = at_debug_value_name(value);
    const long long output = (long long)(at->first_output + column);
    if (at->number == 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "ATTUNE_CHECK: packed_weights has %s in the bias of the projection of %s, output %lld", is, name,
                       output);
    if (s->group)
        return at_fail(
            err, ATTUNE_INVALID_ARGUMENT,
            "ATTUNE_CHECK: packed_weights has %s in the scales of the projection of %s, group %lld of output "
            "%lld",
            is, name, (long long)(2 * (at->number - 1) + half), output);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "ATTUNE_CHECK: packed_weights has %s in the projection of %s, input %lld of output %lld", is, name,
                   (long long)((at->number - 1) * s->inputs + half), output);
}

/* Biases of quantised weights and of pairs are f32, which fill a word. */
static attune_status check_packed_row(const packed_place *at, ir_elem elem, size_t word, at_error *err) {
    const bool is_bias = at->number == 0 && word == sizeof(float);
    const ir_elem own = is_bias ? IR_F32 : elem;
    const size_t bytes = ir_elem_get(own)->bytes;
    for (int64_t c = 0; c < at->outputs; c++)
        for (size_t half = 0; half * bytes < word; half++) {
            const at_debug_value value = at_debug_value_of(own, at->row + (size_t)c * word + half * bytes);
            if (value) return fail_packed(at, c, (int64_t)half, value, err);
        }
    return ATTUNE_OK;
}

/* Rows of a panel that are floats; of quantised weights only biases and scales are. */
static attune_status check_panel(const at_debug *d, packed_place *at, const char *panel, at_error *err) {
    const mha_packed_section *const s = at->section;
    const size_t size = mha_weight_bytes(d->p->w_dtype), word = (size_t)s->unit * size;
    const ir_elem elem = s->group ? IR_F16 : d->s->tensors[(int)d->s->place[MHA_PACKED_WEIGHTS]].elem;
    const int64_t rows = s->group ? 1 + s->scale_rows : s->rows;
    for (at->number = 0; at->number < rows; at->number++) {
        at->row = panel + (size_t)(at->number * mha_packed_row(s)) * size;
        if (check_packed_row(at, elem, word, err)) return err->status;
    }
    return ATTUNE_OK;
}

attune_status at_debug_check_packed(const at_debug *d, size_t place, at_error *err) {
    mha_packed_layout layout;
    mha_packed_layout_of(d->p, &layout);
    for (int i = 0; i < MHA_NUM_PROJECTIONS; i++) {
        const mha_packed_section *const s = &layout.section[i];
        packed_place at = {.section = s, .projection = (mha_projection)i};
        if (!s->exists) continue;
        const char *panel = (const char *)d->buffers[place] + (size_t)s->offset * mha_weight_bytes(d->p->w_dtype);
        for (int64_t n = 0; n < s->num_groups * s->panels; n++) {
            const int64_t group = n / s->panels, column = n % s->panels * MHA_PANEL;
            at.first_output = group * s->group_columns + column;
            at.outputs = min_of(MHA_PANEL, min_of(s->group_columns - column, s->columns - at.first_output));
            if (check_panel(d, &at, panel, err)) return err->status;
            panel += (size_t)mha_packed_panel(s) * mha_weight_bytes(d->p->w_dtype);
        }
    }
    return ATTUNE_OK;
}
