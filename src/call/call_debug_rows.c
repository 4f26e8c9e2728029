/* Tensors whose rows belong to queries or keys: Q, K, V, their scales, new keys, and the inputs of a block. */
#include "base/plain_text.h"
#include "call/call_debug.h"

/* A tensor whose rows belong to queries or keys of sequences. */
typedef struct rows {
    const mha_tensor *t;
    const int64_t *strides;
    const char *data;
    size_t element;
    at_debug_row kind;
    bool has_heads;
    int64_t heads, columns; /* columns: of a row; of panels those of a token */
    bool in_panels, is_inline;
} rows;

static at_debug_row kind_of(const attune_problem *p, mha_tensor_id id) {
    switch (id) {
    case MHA_K:
    case MHA_V:
    case MHA_K_SCALE:
    case MHA_V_SCALE:
    case MHA_K_SCALES:
    case MHA_V_SCALES: return AT_KEY_ROW;
    case MHA_X_KV:
    case MHA_X_V: return p->seq_new ? AT_NEW_KEY_ROW : AT_KEY_ROW;
    case MHA_K_NEW:
    case MHA_V_NEW: return AT_NEW_KEY_ROW;
    default: return AT_QUERY_ROW;
    }
}

static rows rows_of(const at_debug *d, size_t i) {
    const mha_tensor *const t = &d->s->tensors[i];
    const bool is_value = t->id == MHA_V;
    rows r = {.t = t,
              .strides = d->settled->strides[i],
              .data = d->buffers[i],
              .element = d->s->element[i],
              .kind = kind_of(d->p, t->id),
              .has_heads = t->dims[1] == MHA_HEADS || t->dims[1] == MHA_KV_HEADS};
    r.heads = r.has_heads ? d->size[t->dims[1]] : 1;
    r.columns = t->rank > (r.has_heads ? 3 : 2) ? d->size[t->dims[t->rank - 1]] : 1;
    if (t->id != MHA_K && t->id != MHA_V) return r;
    r.in_panels = (is_value ? d->p->v_layout : d->p->k_layout) == ATTUNE_LAYOUT_PANELS;
    if (r.in_panels) r.columns = is_value ? d->p->head_dim_v : d->p->head_dim;
    r.is_inline = mha_is_inline(is_value ? d->p->v_scales : d->p->k_scales);
    return r;
}

/* The first two or three indices of a row, and of panels the token's place in its panel in *within. */
static void place_row(const at_debug *d, const rows *r, const at_debug_sequence *q, int64_t head, int64_t row,
                      int64_t index[4], int64_t *within) {
    const int dim = r->has_heads ? 2 : 1;
    index[0] = q->number;
    if (r->has_heads) index[1] = head;
    index[dim] = row;
    const bool is_cache = r->has_heads && r->kind == AT_KEY_ROW;
    if (is_cache && d->pages) {
        index[0] = d->pages[q->number * d->page_stride + row / d->p->page_size];
        index[dim] = row % d->p->page_size;
    } else if (d->p->is_ragged && mha_is_of_tokens(r->t)) {
        const int32_t *const first = r->kind == AT_KEY_ROW && d->cu_kv ? d->cu_kv : d->cu_q;
        index[0] = 0;
        index[dim] = first[q->number] + row;
    }
    *within = index[dim] % ATTUNE_PANEL_TOKENS;
    if (r->in_panels) index[dim] /= ATTUNE_PANEL_TOKENS;
}

/* Where a panel has a column of a token (docs/panels.md). */
static int64_t in_panel(const rows *r, int64_t token, int64_t column) {
    const int64_t unit = mha_unit_of_dtype(r->t->dtype);
    if (r->t->id == MHA_V) return token / unit * unit * r->columns + token % unit + column * unit;
    return column / unit * unit * ATTUNE_PANEL_TOKENS + token * unit + column % unit;
}

/* The f16 of a packed row: scales, and minimums; the byte where it lies. */
static int64_t inline_scale(const at_debug *d, const rows *r, int64_t number) {
    const bool is_value = r->t->id == MHA_V;
    const attune_scales scales = is_value ? d->p->v_scales : d->p->k_scales;
    const int64_t per_block = mha_inline_bytes(scales) / MHA_INLINE_BYTES;
    const int64_t block = mha_row_bytes(is_value ? d->p->v_dtype : d->p->k_dtype, scales, MHA_BLOCK_COLUMNS);
    const int64_t at = number / per_block * block + number % per_block * MHA_INLINE_BYTES;
    return at < r->columns ? at : -1;
}

/* The first element of a row that is wrong; its index along the last dim in *column. */
static at_debug_value find_wrong(const at_debug *d, const rows *r, const char *row, int64_t within, int64_t *column) {
    const unsigned forbidden = at_debug_forbidden(r->t);
    const int64_t stride = r->strides[r->t->rank - 1];
    if (r->is_inline) {
        for (int64_t n = 0; (*column = inline_scale(d, r, n)) >= 0; n++) {
            const at_debug_value value = at_debug_value_of(IR_F16, row + *column);
            if (value & forbidden) return value;
        }
        return AT_FINITE;
    }
    if (!r->in_panels && stride == 1 && at_debug_are_finite(r->t->elem, row, r->columns)) return AT_FINITE;
    for (int64_t c = 0; c < r->columns; c++) {
        *column = r->in_panels ? in_panel(r, within, c) : c;
        const at_debug_value value =
            at_debug_value_of(r->t->elem, row + (r->columns == 1 ? 0 : *column * stride * (int64_t)r->element));
        if (value & forbidden) return value;
    }
    return AT_FINITE;
}

static attune_status fail_row(const rows *r, const int64_t index[4], at_debug_value value, const at_debug_sequence *q,
                              int64_t row, at_error *err) {
    static const char *const names[] = {"query", "key", "new key"};
    char what[96];
    at_print(what, sizeof what, ": %s %lld of sequence %lld", names[r->kind], (long long)row, (long long)q->number);
    return at_debug_fail(err, r->t, index, value, what);
}

static attune_status check_row(const at_debug *d, const rows *r, const at_debug_sequence *q, int64_t head, int64_t row,
                               at_error *err) {
    int64_t index[4] = {0}, within, column = 0, at = 0;
    place_row(d, r, q, head, row, index, &within);
    const int outer = r->has_heads ? 3 : 2;
    for (int i = 0; i < outer; i++) at += index[i] * r->strides[i];
    const at_debug_value value = find_wrong(d, r, r->data + at * (int64_t)r->element, within, &column);
    if (!value || !at_debug_row_counts(d, q, r->t, r->kind, r->has_heads ? head : -1, row)) return ATTUNE_OK;
    if (outer < r->t->rank) index[outer] = column;
    return fail_row(r, index, value, q, row, err);
}

static int64_t count_rows(const at_debug *d, const rows *r, const at_debug_sequence *q) {
    if (r->kind == AT_QUERY_ROW) return q->queries;
    if (r->kind == AT_NEW_KEY_ROW) return q->new_keys;
    const bool beyond_lengths = at_debug_shows_all(d, r->t->id) && !d->pages;
    return (beyond_lengths ? d->size[MHA_SEQ_KV] : q->keys) - q->new_keys;
}

static attune_status check_head(const at_debug *d, const rows *r, const at_debug_sequence *q, int64_t head,
                                at_error *err) {
    const int64_t count = count_rows(d, r, q);
    for (int64_t row = 0; row < count; row++)
        if (check_row(d, r, q, head, row, err)) return err->status;
    return ATTUNE_OK;
}

attune_status at_debug_check_rows(const at_debug *d, size_t place, at_error *err) {
    const rows r = rows_of(d, place);
    for (int64_t b = 0; b < d->size[MHA_BATCH]; b++) {
        const at_debug_sequence q = at_debug_sequence_of(d, b);
        for (int64_t head = 0; head < r.heads; head++)
            if (check_head(d, &r, &q, head, err)) return err->status;
    }
    return ATTUNE_OK;
}
