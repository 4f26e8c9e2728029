/* Which rows of a call's tensors can reach an output: those within lengths, of queries that attend to a key, and of
 * keys that some query attends to. Slow, so it is called only for rows that hold something wrong. */
#include "call/call_debug.h"
#include "expr/evaluate.h"
#include "problem/problem_sight.h"

at_debug_sequence at_debug_sequence_of(const at_debug *d, int64_t b) {
    const int64_t *const size = d->size;
    at_debug_sequence q = {.number = b, .queries = size[MHA_SEQ_Q], .keys = size[MHA_SEQ_KV]};
    if (d->cu_q) q.queries = (int64_t)d->cu_q[b + 1] - d->cu_q[b];
    if (d->cu_kv) q.keys = (int64_t)d->cu_kv[b + 1] - d->cu_kv[b];
    if (mha_keys_follow_queries(d->p)) q.keys = q.queries;
    if (d->kv_lens) q.keys = d->kv_lens[b];
    if (!mha_has_keys(d->p)) q.keys = 0;
    if (d->p->seq_new) q.new_keys = d->p->is_ragged ? q.queries : size[MHA_SEQ_NEW];
    q.position = mha_first_position(d->p, q.queries, q.keys) + (d->offsets ? d->offsets[b] : 0);
    return q;
}

/* ---- Masks ---- */

static const char *mask_element(const at_debug *d, mha_tensor_id id, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int place = d->s->place[id];
    const int64_t *const strides = d->settled->strides[place];
    const int64_t at = b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3];
    return (const char *)d->buffers[place] + at * d->s->element[place];
}

static bool is_masked(const at_debug *d, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (d->s->place[MHA_ATTN_MASK] >= 0 && (j >= d->size[MHA_MASK_KV] || !*mask_element(d, MHA_ATTN_MASK, b, h, i, j)))
        return true;
    if (d->s->place[MHA_ATTN_BIAS] < 0) return false;
    if (j >= d->size[MHA_BIAS_KV]) return true;
    const ir_elem elem = at_signature_tensor(d->s, MHA_ATTN_BIAS)->elem;
    return at_debug_value_of(elem, mask_element(d, MHA_ATTN_BIAS, b, h, i, j)) == AT_SMALL;
}

static double load_user(void *user, int number, const int64_t index[EX_MAX_RANK]) {
    const at_debug *const d = user;
    const int place = d->s->place[MHA_USER_TENSORS + number];
    const mha_tensor *const t = &d->s->tensors[place];
    int64_t at = 0;
    for (int i = 0; i < t->rank; i++) at += index[i] * d->settled->strides[place][i];
    const char *const element = (const char *)d->buffers[place] + at * d->s->element[place];
    return t->dtype == ATTUNE_BOOL ? (double)(*element != 0) : at_debug_number(t->elem, element);
}

static bool function_shows(const at_debug *d, const at_debug_sequence *q, int64_t h, int64_t i, int64_t j) {
    const int64_t group = d->p->num_heads / d->p->num_kv_heads;
    if (!d->functions || d->functions->mask < 0) return true;
    ex_place place = {.variables = {[EX_V_B] = q->number,
                                    [EX_V_H] = h,
                                    [EX_V_KV_H] = h / group,
                                    [EX_V_Q] = i,
                                    [EX_V_KV] = j,
                                    [EX_V_SEQ_Q] = q->queries,
                                    [EX_V_SEQ_KV] = q->keys},
                      .load = load_user,
                      .user = (void *)d};
    for (int number = 0; number < d->functions->num_tensors; number++) {
        const mha_tensor *const t = at_signature_tensor(d->s, (mha_tensor_id)(MHA_USER_TENSORS + number));
        for (int k = 0; k < t->rank; k++) place.dims[number][k] = d->size[t->dims[k]];
    }
    return ex_mask_shows(d->functions, &place);
}

/* ---- Queries and keys ---- */

/* op=weights computes some of the rows. */
static bool is_wanted(const at_debug *d, int64_t i) {
    if (!d->wanted_rows) return true;
    for (int64_t row = 0; row < d->size[MHA_NUM_ROWS]; row++)
        if (d->wanted_rows[row] == i) return true;
    return false;
}

/* The list of a query: its number among all, and how many keys it has. */
static int64_t list_of(const at_debug *d, const at_debug_sequence *q, int64_t i, int64_t *count) {
    const int64_t first = d->cu_q ? d->cu_q[q->number] : q->number * q->queries;
    const int64_t list = d->p->kv_ids == ATTUNE_KV_IDS_QUERY ? first + i : q->number;
    *count = d->list_lens ? d->list_lens[list] : d->size[MHA_NUM_IDS];
    return list;
}

bool at_debug_scores(const at_debug *d, const at_debug_sequence *q, int64_t h, int64_t i, int64_t j) {
    int64_t count;
    if (!d->p->kv_ids) return at_debug_attends(d, q, h, i, j);
    if (i >= q->queries) return false;
    list_of(d, q, i, &count);
    return j < count && !is_masked(d, q->number, h, i, j);
}

static bool attends_by_list(const at_debug *d, const at_debug_sequence *q, int64_t h, int64_t i, int64_t j) {
    int64_t count;
    const int64_t list = list_of(d, q, i, &count);
    for (int64_t n = 0; n < count; n++)
        if (d->listed[list * d->size[MHA_NUM_IDS] + n] == j && at_debug_scores(d, q, h, i, n)) return true;
    return false;
}

bool at_debug_attends(const at_debug *d, const at_debug_sequence *q, int64_t h, int64_t i, int64_t j) {
    const int64_t offset = d->offsets ? d->offsets[q->number] : 0;
    if (i >= q->queries || j >= q->keys || !is_wanted(d, i)) return false;
    if (d->p->kv_ids) return attends_by_list(d, q, h, i, j);
    if (d->p->low_rank) return true; /* each of these keys is a sum of all */
    const attune_sight sight = mha_sight_of_queries(d->p, &(mha_queries){q->queries, q->keys, offset, i, i + 1});
    if ((j < sight.some_begin || j >= sight.some_end) && j >= sight.global_end) return false;
    return !is_masked(d, q->number, h, i, j) && function_shows(d, q, h, i, j);
}

static bool attends_to_any(const at_debug *d, const at_debug_sequence *q, int64_t h, int64_t i) {
    for (int64_t j = 0; j < q->keys; j++)
        if (at_debug_attends(d, q, h, i, j)) return true;
    return false;
}

static bool is_attended(const at_debug *d, const at_debug_sequence *q, int64_t h, int64_t j) {
    for (int64_t i = 0; i < q->queries; i++)
        if (at_debug_attends(d, q, h, i, j)) return true;
    return false;
}

static bool is_key(mha_tensor_id id) { return id == MHA_K || id == MHA_K_SCALE || id == MHA_K_SCALES; }

bool at_debug_shows_all(const at_debug *d, mha_tensor_id id) {
    const attune_weights_mode mode = d->p->weights_mode;
    const bool makes_scores = id == MHA_Q || id == MHA_X || id == MHA_X_KV || is_key(id);
    return makes_scores && (mode == ATTUNE_WEIGHTS_SCALED || mode == ATTUNE_WEIGHTS_CAPPED);
}

/* `key`: -1: any. */
static bool key_counts(const at_debug *d, const at_debug_sequence *q, int64_t h, int64_t key) {
    if (key >= 0) return is_attended(d, q, h, key);
    for (int64_t j = 0; j < q->keys; j++)
        if (is_attended(d, q, h, j)) return true;
    return false;
}

bool at_debug_row_counts(const at_debug *d, const at_debug_sequence *q, const mha_tensor *t, at_debug_row kind,
                         int64_t head, int64_t row) {
    const bool is_input = t->id == MHA_X;
    if (kind == AT_NEW_KEY_ROW || (is_input && d->p->seq_new)) return true; /* it is written to the cache */
    if (at_debug_shows_all(d, t->id)) return kind != AT_QUERY_ROW || is_wanted(d, row);
    if (!mha_has_keys(d->p)) return true;
    const int64_t key = is_key(t->id) && mha_quantises_keys(d->p) ? -1 : row; /* the mean of all is subtracted */
    const int64_t group = kind == AT_KEY_ROW ? d->p->num_heads / d->p->num_kv_heads : 1;
    const int64_t begin = head < 0 ? 0 : head * group, end = head < 0 ? d->size[MHA_HEADS] : begin + group;
    for (int64_t h = begin; h < end; h++) {
        if (kind == AT_KEY_ROW && key_counts(d, q, h, key)) return true;
        if (kind == AT_QUERY_ROW && attends_to_any(d, q, h, row)) return true;
        if (is_input && mha_keys_follow_queries(d->p) && key_counts(d, q, h, row)) return true;
    }
    return false;
}
