/* The entry point of the debug mode, the check of pages, and which check each tensor gets. */
#include "call/call_debug.h"
#include "base/plain_text.h"

#include <string.h>

/* ---- Sentences ---- */

attune_status at_debug_fail(at_error *err, const mha_tensor *t, const int64_t index[4], at_debug_value value,
                            const char *what) {
    char at[96] = "";
    size_t used = 0;
    for (int i = 0; i < t->rank; i++)
        used += (size_t)at_print(at + used, sizeof at - used, "%s%lld", i ? ", " : "", (long long)index[i]);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "ATTUNE_CHECK: %s[%s] is %s%s", t->name, at,
                   at_debug_value_name(value), what);
}

/* ---- Pages ---- */

/* A page of a cache, by its place in block_table. */
typedef struct page_use {
    int64_t sequence, column;
} page_use;

static attune_status fail_page(page_use a, page_use b, int32_t page, int64_t writer, at_error *err) {
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "ATTUNE_CHECK: block_table[%lld, %lld] and block_table[%lld, %lld] are both page %d, to which "
                   "sequence %lld appends keys: it must have that page to itself",
                   (long long)a.sequence, (long long)a.column, (long long)b.sequence, (long long)b.column, (int)page,
                   (long long)writer);
}

/* writers[page]: 1 + the place in block_table that appends to it, or 0. The first pass finds these; the second finds
 * other places that read such a page. */
static attune_status check_page(const at_debug *d, int64_t *writers, const at_debug_sequence *q, int64_t column,
                                bool only_writers, at_error *err) {
    const int64_t columns = d->size[MHA_MAX_PAGES], own = q->number * columns + column + 1;
    const int32_t page = d->pages[q->number * d->page_stride + column];
    const page_use use = {q->number, column};
    if (writers[page] && writers[page] != own) {
        const int64_t other = writers[page] - 1;
        return fail_page((page_use){other / columns, other % columns}, use, page, other / columns, err);
    }
    if (only_writers) writers[page] = own;
    return ATTUNE_OK;
}

static attune_status check_pages(const at_debug *d, int64_t *writers, bool only_writers, at_error *err) {
    const int64_t rows = d->p->page_size;
    for (int64_t b = 0; b < d->size[MHA_BATCH]; b++) {
        const at_debug_sequence q = at_debug_sequence_of(d, b);
        if (only_writers && !q.new_keys) continue;
        const int64_t first = only_writers ? (q.keys - q.new_keys) / rows : 0, end = (q.keys + rows - 1) / rows;
        for (int64_t i = first; i < end; i++) {
            const attune_status status = check_page(d, writers, &q, i, only_writers, err);
            if (status) return status;
        }
    }
    return ATTUNE_OK;
}

static attune_status check_shared_pages(const at_debug *d, const attune_allocator *allocator, at_error *err) {
    if (!d->pages || !d->p->seq_new) return ATTUNE_OK;
    const size_t bytes = (size_t)d->size[MHA_NUM_PAGES] * sizeof(int64_t);
    int64_t *const writers = at_alloc(allocator, bytes ? bytes : 1);
    if (!writers) return at_fail_memory(err, bytes);
    memset(writers, 0, bytes);
    attune_status status = check_pages(d, writers, true, err);
    if (!status) status = check_pages(d, writers, false, err);
    at_free(allocator, writers);
    return status;
}

/* ---- The call ---- */

static attune_status check_tensor(const at_debug *d, size_t i, at_error *err) {
    const mha_tensor *const t = &d->s->tensors[i];
    const bool is_read = t->access & IR_IN && d->settled->bytes[i];
    const bool has_floats = at_debug_is_float(t->elem) || t->id == MHA_PACKED_WEIGHTS || t->is_packed;
    if (!is_read || !has_floats || t->id >= MHA_USER_TENSORS) return ATTUNE_OK;
    switch (t->id) {
    case MHA_ATTN_BIAS: return at_debug_check_bias(d, i, err);
    case MHA_COS:
    case MHA_SIN: return at_debug_check_angles(d, i, err);
    case MHA_PACKED_WEIGHTS: return at_debug_check_packed(d, i, err);
    case MHA_ALIBI_SLOPES:
    case MHA_SINKS:
    case MHA_Q_NORM:
    case MHA_K_NORM:
    case MHA_PARTS:
    case MHA_PARTS_LSE:
    case MHA_KEYS_LOW:
    case MHA_VALUES_LOW: return at_debug_check_whole(d, i, err);
    default: /* scales of heads and of channels belong to no row */
        return t->dims[0] == MHA_KV_HEADS ? at_debug_check_whole(d, i, err) : at_debug_check_rows(d, i, err);
    }
}

static const int32_t *table_of(const at_debug *d, mha_tensor_id id) {
    const int place = d->s->place[id];
    return place < 0 || !d->settled->bytes[place] ? NULL : d->buffers[place];
}

static attune_status check_all(at_debug *d, const attune_allocator *allocator, at_error *err) {
    attune_status status = check_shared_pages(d, allocator, err);
    for (size_t i = 0; !status && i < d->s->count; i++) status = check_tensor(d, i, err);
    return status;
}

attune_status at_call_debug(const attune_allocator *allocator, const at_signature *s, const at_call *call,
                            at_error *err) {
    at_debug d = {
        .s = s, .p = &s->problem, .settled = call->settled, .buffers = call->buffers, .size = call->settled->sizes.of};
    if (call->settled->is_empty) return ATTUNE_OK;
    d.cu_q = table_of(&d, MHA_CU_SEQLENS_Q);
    d.cu_kv = table_of(&d, MHA_CU_SEQLENS_KV);
    d.kv_lens = table_of(&d, MHA_KV_LENS);
    d.offsets = table_of(&d, MHA_CAUSAL_OFFSETS);
    d.pages = table_of(&d, MHA_BLOCK_TABLE);
    d.ids = table_of(&d, MHA_POSITION_IDS);
    d.wanted_rows = table_of(&d, MHA_ROW_IDS);
    d.listed = table_of(&d, MHA_KV_IDS);
    d.list_lens = table_of(&d, MHA_KV_ID_LENS);
    if (d.pages) d.page_stride = d.settled->strides[(int)s->place[MHA_BLOCK_TABLE]][0];
    if (!s->problem.mask_mod[0]) return check_all(&d, allocator, err);
    ex_program *const functions = at_alloc(allocator, sizeof *functions);
    if (!functions) return at_fail_memory(err, sizeof *functions);
    d.functions = functions;
    attune_status status = mha_read_functions(&s->problem, functions, err);
    if (!status) status = check_all(&d, allocator, err);
    at_free(allocator, functions);
    return status;
}
