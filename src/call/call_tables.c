/* The values of index tensors. Every number that a kernel uses as an index is checked here, before any other memory is
 * read or written. */
#include "call/call.h"

#include <stdio.h>

/* The tables of a problem, NULL where it has none, and the limits of their elements. */
typedef struct tables {
    const at_signature *s;
    const attune_arguments *arguments;
    const mha_sizes *sizes;
    const int32_t *cu_q, *cu_kv, *kv_lens, *offsets, *pages, *ids, *id_lens;
    int64_t row;  /* elements between two rows of pages */
    bool rotates; /* by the positions of queries and keys */
} tables;

typedef struct sequence {
    long long number;
    int64_t queries, keys, new_keys;
} sequence;

attune_status at_call_pointer(const mha_tensor *t, const attune_arguments *a, const void **pointer, at_error *err) {
    const size_t align = at_element_bytes(t);
    *pointer = *(const void *const *)((const char *)a + t->pointer);
    if (!*pointer) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to %s is NULL", t->name);
    if ((uintptr_t)*pointer % align)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to %s (%p) is not aligned to %zu bytes", t->name,
                       *pointer, align);
    return ATTUNE_OK;
}

static attune_status find(const at_signature *s, const attune_arguments *a, mha_tensor_id id, const int32_t **table,
                          at_error *err) {
    const mha_tensor *t = at_signature_tensor(s, id);
    const void *pointer = NULL;
    *table = NULL;
    if (!t) return ATTUNE_OK;
    const attune_status status = at_call_pointer(t, a, &pointer, err);
    *table = pointer;
    return status;
}

/* ---- Where bounds come from, for messages ---- */

enum { BOUND_TEXT = 80 };

/* The longest queries or keys that a call may have. */
static const char *longest_of(const tables *t, mha_size size, char text[BOUND_TEXT]) {
    const attune_problem *p = &t->s->problem;
    const bool is_keys = size == MHA_SEQ_KV;
    const int64_t given = is_keys ? t->arguments->seq_kv : t->arguments->seq_q;
    const int64_t bound = is_keys ? p->max_seq_kv : p->max_seq_q, pages = t->sizes->of[MHA_MAX_PAGES];
    if (given != ATTUNE_NOT_SET || t->s->compiled.of[size] >= 0) return is_keys ? "seq_kv" : "seq_q";
    if (bound && t->sizes->of[size] == bound) return is_keys ? "max_seq_kv" : "max_seq_q";
    if (!is_keys) return "total_q";
    if (!p->page_size) return "total_kv";
    snprintf(text, BOUND_TEXT, "max_pages * page_size = %lld * %lld", (long long)pages, (long long)p->page_size);
    return text;
}

/* The keys of a sequence before kv_lens shortens them. */
static const char *keys_of(const tables *t, char text[BOUND_TEXT]) {
    if (t->cu_kv) return "its length in cu_seqlens_kv";
    if (!mha_keys_follow_queries(&t->s->problem)) return longest_of(t, MHA_SEQ_KV, text);
    return t->cu_q ? "its length in cu_seqlens_q" : longest_of(t, MHA_SEQ_Q, text);
}

/* ---- Lengths ---- */

/* The length of a sequence in cu_seqlens_q or cu_seqlens_kv, in place of the longest one. */
static attune_status check_cumulative(const tables *t, mha_size size, long long b, int64_t *length, at_error *err) {
    const bool is_keys = size == MHA_SEQ_KV;
    const char *const name = is_keys ? "cu_seqlens_kv" : "cu_seqlens_q";
    const int32_t *const cu = is_keys ? t->cu_kv : t->cu_q;
    const int64_t total = t->sizes->of[is_keys ? MHA_TOTAL_KV : MHA_TOTAL_Q], most = t->sizes->of[size];
    char text[BOUND_TEXT];
    if (cu[b] < 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s[%lld] is %d; it must not be negative", name, b, cu[b]);
    if (cu[b + 1] < cu[b])
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s falls from %d to %d at index %lld", name, cu[b], cu[b + 1],
                       b + 1);
    if (total >= 0 && cu[b + 1] > total)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s[%lld] is %d, but there are only %lld tokens (%s)", name, b + 1,
                       cu[b + 1], (long long)total, is_keys ? "total_kv" : "total_q");
    *length = (int64_t)cu[b + 1] - cu[b];
    if (*length <= most) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "sequence %lld of %s has %lld tokens; this call takes at most %lld (%s)", b, name,
                   (long long)*length, (long long)most, longest_of(t, size, text));
}

static attune_status measure(const tables *t, sequence *e, at_error *err) {
    const int64_t *size = t->sizes->of;
    const long long b = e->number;
    char text[BOUND_TEXT];
    e->queries = size[MHA_SEQ_Q];
    e->keys = size[MHA_SEQ_KV];
    if (t->cu_q && check_cumulative(t, MHA_SEQ_Q, b, &e->queries, err)) return ATTUNE_INVALID_ARGUMENT;
    if (t->cu_kv && check_cumulative(t, MHA_SEQ_KV, b, &e->keys, err)) return ATTUNE_INVALID_ARGUMENT;
    if (mha_keys_follow_queries(&t->s->problem)) e->keys = e->queries;
    if (t->kv_lens) {
        if (t->kv_lens[b] < 0 || t->kv_lens[b] > e->keys)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "kv_lens[%lld] is %d; it must be from 0 to %lld (%s)", b,
                           (int)t->kv_lens[b], (long long)e->keys, keys_of(t, text));
        e->keys = t->kv_lens[b];
    }
    e->new_keys = 0;
    if (t->s->problem.seq_new) e->new_keys = t->s->problem.is_ragged ? e->queries : size[MHA_SEQ_NEW];
    if (e->keys >= e->new_keys || e->new_keys == 0) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "sequence %lld has %lld keys%s, fewer than the %lld that are appended",
                   b, (long long)e->keys, t->kv_lens ? " (kv_lens)" : "", (long long)e->new_keys);
}

static attune_status check_pages(const tables *t, const sequence *e, at_error *err) {
    const int64_t columns = t->sizes->of[MHA_MAX_PAGES], pages = t->sizes->of[MHA_NUM_PAGES];
    const int64_t size = t->s->problem.page_size, used = e->keys / size + (e->keys % size != 0);
    if (used > columns)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "sequence %lld has %lld keys, but its row of block_table has %lld pages of %lld (max_pages, "
                       "page_size)",
                       e->number, (long long)e->keys, (long long)columns, (long long)size);
    for (int64_t i = 0; i < used; i++) {
        const int32_t page = t->pages[e->number * t->row + i];
        if (page < 0 || page >= pages)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "block_table[%lld, %lld] is %d; num_pages is %lld", e->number,
                           (long long)i, (int)page, (long long)pages);
    }
    return ATTUNE_OK;
}

/* ---- Lists of keys ---- */

static attune_status check_list(const tables *t, const sequence *e, int64_t row, int64_t count, at_error *err) {
    const int32_t *const ids = t->ids + row * t->sizes->of[MHA_NUM_IDS];
    const bool is_by_query = t->s->problem.kv_ids == ATTUNE_KV_IDS_QUERY;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= e->keys)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "kv_ids has key %d at place %lld of the list of %s %lld; sequence %lld has %lld keys",
                           ids[i], (long long)i, is_by_query ? "query" : "sequence", (long long)row, e->number,
                           (long long)e->keys);
        if (t->s->problem.reproducible && i && ids[i] <= ids[i - 1])
            return at_fail(
                err, ATTUNE_INVALID_ARGUMENT,
                "kv_ids has key %d after key %d in the list of %s %lld; with reproducible=1 keys must ascend", ids[i],
                ids[i - 1], is_by_query ? "query" : "sequence", (long long)row);
    }
    return ATTUNE_OK;
}

/* The lists of a sequence. Ids beyond the length of a list are not read. */
static attune_status check_lists(const tables *t, const sequence *e, at_error *err) {
    const bool is_by_query = t->s->problem.kv_ids == ATTUNE_KV_IDS_QUERY;
    const int64_t rows = is_by_query ? e->queries : 1, most = t->sizes->of[MHA_NUM_IDS];
    const int64_t first = !is_by_query ? e->number : t->cu_q ? t->cu_q[e->number] : e->number * e->queries;
    for (int64_t row = first; row < first + rows; row++) {
        const int64_t count = t->id_lens ? t->id_lens[row] : most;
        if (count < 0 || count > most)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "kv_id_lens is %lld at list %lld; it must be from 0 to %lld "
                           "(num_ids)",
                           (long long)count, (long long)row, (long long)most);
        if (check_list(t, e, row, count, err)) return ATTUNE_INVALID_ARGUMENT;
    }
    return ATTUNE_OK;
}

/* ---- Positions ---- */

static attune_status check_positions(const tables *t, const sequence *e, at_error *err) {
    const attune_problem *p = &t->s->problem;
    int64_t first = mha_first_position(p, e->queries, e->keys);
    if (t->offsets) first += t->offsets[e->number];
    const int64_t last = first + e->queries - 1, rows = t->sizes->of[MHA_ROTARY_POSITIONS];
    if (e->queries && (first < -INT32_MAX || last > INT32_MAX))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "the queries of sequence %lld stand at positions %lld to %lld, beyond 32 bits", e->number,
                       (long long)first, (long long)last);
    if (!t->rotates) return ATTUNE_OK;
    if (e->queries && first < 0 && e->queries > e->keys && mha_is_bottom_right(p))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "sequence %lld has %lld queries and %lld keys: with the last query at the last key "
                       "(bottom_right) its first query is at position %lld, which rotary_dim has no angle for",
                       e->number, (long long)e->queries, (long long)e->keys, (long long)first);
    if (e->queries && (first < 0 || last >= rows))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "the queries of sequence %lld stand at positions %lld to %lld; rotary_positions is %lld",
                       e->number, (long long)first, (long long)last, (long long)rows);
    const bool turns_keys = mha_rotates_keys(p) && (!p->seq_new || e->new_keys);
    if (turns_keys && e->keys > rows)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "sequence %lld has %lld keys, but rotary_positions is %lld",
                       e->number, (long long)e->keys, (long long)rows);
    return ATTUNE_OK;
}

/* Without appended keys the queries' ids are also those of the keys. */
static attune_status check_id_count(const tables *t, const sequence *e, at_error *err) {
    const at_signature *s = t->s;
    if (!s->problem.is_ragged || s->problem.seq_new || s->place[MHA_POSITION_IDS] < 0 ||
        !mha_rotates_keys(&s->problem) || e->keys == e->queries)
        return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "sequence %lld has %lld queries and %lld keys; with position_ids they must be equal", e->number,
                   (long long)e->queries, (long long)e->keys);
}

attune_status at_tables_row(const attune_arguments *a, const mha_sizes *sizes, int64_t *row, at_error *err) {
    const int64_t columns = sizes->of[MHA_MAX_PAGES];
    *row = a->block_table_stride ? a->block_table_stride : columns;
    if (*row >= columns && *row <= MHA_MAX_STRIDE) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "block_table_stride is %lld; it must be 0, or from %lld (max_pages) to %lld", (long long)*row,
                   (long long)columns, (long long)MHA_MAX_STRIDE);
}

attune_status at_tables_check_sequences(const at_signature *s, const attune_arguments *a, const mha_sizes *sizes,
                                        at_longest *longest, at_error *err) {
    tables t = {
        .s = s, .arguments = a, .sizes = sizes, .rotates = s->problem.rotary_dim && s->place[MHA_POSITION_IDS] < 0};
    *longest = (at_longest){0, 0};
    if (find(s, a, MHA_CU_SEQLENS_Q, &t.cu_q, err) || find(s, a, MHA_CU_SEQLENS_KV, &t.cu_kv, err) ||
        find(s, a, MHA_KV_LENS, &t.kv_lens, err) || find(s, a, MHA_CAUSAL_OFFSETS, &t.offsets, err) ||
        (sizes->of[MHA_NUM_IDS] > 0 && find(s, a, MHA_KV_IDS, &t.ids, err)) ||
        find(s, a, MHA_KV_ID_LENS, &t.id_lens, err) ||
        (sizes->of[MHA_MAX_PAGES] > 0 &&
         (find(s, a, MHA_BLOCK_TABLE, &t.pages, err) || at_tables_row(a, sizes, &t.row, err))))
        return ATTUNE_INVALID_ARGUMENT;
    const int64_t sequences = s->has_sequence_tables ? sizes->of[MHA_BATCH] : 1; /* else all are alike */
    for (int64_t b = 0; b < sequences; b++) {
        sequence e = {.number = b};
        if (measure(&t, &e, err) || (s->problem.page_size && check_pages(&t, &e, err)) ||
            (s->problem.kv_ids && check_lists(&t, &e, err)) || (s->has_position && check_positions(&t, &e, err)) ||
            check_id_count(&t, &e, err))
            return ATTUNE_INVALID_ARGUMENT;
        if (e.queries > longest->q) longest->q = e.queries;
        if (e.keys > longest->kv) longest->kv = e.keys;
    }
    return ATTUNE_OK;
}

/* ---- Ids ---- */

/* The ids are indices of as many rows as `size` says. */
static attune_status check_ids(const at_signature *s, const attune_arguments *a, const mha_sizes *sizes,
                               mha_tensor_id id, mha_size size, at_error *err) {
    const int64_t bound = sizes->of[size];
    const char *const what = size == MHA_SEQ_Q ? "seq_q" : "rotary_positions";
    const mha_tensor *t = at_signature_tensor(s, id);
    const int32_t *ids;
    if (!t) return ATTUNE_OK;
    int64_t begin = 0, end = 1;
    for (int d = 0; d < t->rank; d++) end *= sizes->of[t->dims[d]];
    if (end == 0) return ATTUNE_OK;
    if (find(s, a, id, &ids, err)) return ATTUNE_INVALID_ARGUMENT;
    if (id == MHA_POSITION_IDS && s->problem.is_ragged) { /* tokens that belong to no sequence may have any id */
        begin = a->cu_seqlens_q[0];
        end = a->cu_seqlens_q[sizes->of[MHA_BATCH]];
    }
    const int64_t columns = sizes->of[t->dims[t->rank - 1]];
    for (int64_t i = begin; i < end; i++) {
        if (ids[i] >= 0 && ids[i] < bound) continue;
        char place[48];
        if (t->rank == 1)
            snprintf(place, sizeof place, "%lld", (long long)i);
        else
            snprintf(place, sizeof place, "%lld, %lld", (long long)(i / columns), (long long)(i % columns));
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s[%s] is %d; it must be from 0 to %lld (%s - 1)", t->name, place,
                       (int)ids[i], (long long)(bound - 1), what);
    }
    return ATTUNE_OK;
}

attune_status at_tables_check_ids(const at_signature *s, const attune_arguments *a, const mha_sizes *sizes,
                                  at_error *err) {
    const attune_status status = check_ids(s, a, sizes, MHA_POSITION_IDS, MHA_ROTARY_POSITIONS, err);
    return status ? status : check_ids(s, a, sizes, MHA_ROW_IDS, MHA_SEQ_Q, err);
}
