/* Steps of an index: checks them, divides the work into tasks, and runs the kernel. */
#include "index/index.h"

#include <stdlib.h>
#include <string.h>

/* ---- Lengths ---- */

/* The work of a step for one sequence. */
typedef struct range {
    int64_t first_query, queries, first_key, keys;
} range;

/* A call, as the kernel has it. */
typedef struct call {
    const attune_index_desc *d;
    const attune_index_step *step;
    attune_kernel *kernel;
    bool is_any;       /* it is IDX_ANY */
    int64_t tokens;    /* tokens of q: of all sequences, or of each */
    int64_t keys;      /* tokens of k: likewise; with pages, page_size */
    int64_t sequences; /* first dim of k: 1, the batch, or the pages */
    int64_t queries;   /* of the step */
    int64_t most_keys; /* that a query sees */
    int64_t rows;      /* the most queries of a task */
    double pairs;      /* pairs of a query and a key that are multiplied */
    int32_t (*work)[IDX_WORK_COLUMNS];
    int32_t *table; /* of K without pages, for IDX_ANY */
    int64_t items;
    void *buffers[IDX_NUM_TENSORS];
    int64_t scalars[32];
    size_t num_buffers, num_scalars;
} call;

static attune_status check_sizes(const attune_index_desc *d, const attune_index_step *s, at_error *err) {
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", s->batch},         {"seq_q", s->seq_q},
                 {"seq_kv", s->seq_kv},       {"max_pages", s->max_pages},
                 {"num_pages", s->num_pages}, {"block_table_stride", s->block_table_stride}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (at_check_size(sizes[i].name, sizes[i].value, 0, INT32_MAX, err)) return err->status;
    if (s->batch && d->page_size && (!s->kv_lens || !s->block_table))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL; pages need it",
                       s->kv_lens ? "block_table" : "kv_lens");
    if (s->batch && s->block_table && !d->page_size)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "there is a block_table, but page_size of the index is 0");
    if (d->page_size && s->block_table_stride && s->block_table_stride < s->max_pages)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "block_table_stride is %lld; rows have %lld pages",
                       (long long)s->block_table_stride, (long long)s->max_pages);
    if (s->cu_seqlens_kv && (d->page_size || s->kv_lens))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "cu_seqlens_kv and %s are both given",
                       s->kv_lens ? "kv_lens" : "page_size");
    return ATTUNE_OK;
}

/* starts[b] and starts[b + 1], which must ascend from 0. */
static attune_status take_start(const char *name, const int32_t *starts, int64_t b, int64_t *first, int64_t *count,
                                at_error *err) {
    if (starts[b] < 0 || starts[b + 1] < starts[b] || (!b && starts[0]))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s[%lld] is %d and %s[%lld] %d; it must rise from 0", name,
                       (long long)b, starts[b], name, (long long)b + 1, starts[b + 1]);
    *first = starts[b], *count = starts[b + 1] - starts[b];
    return ATTUNE_OK;
}

static attune_status take_keys(const call *c, int64_t b, range *r, at_error *err) {
    const attune_index_step *s = c->step;
    if (s->cu_seqlens_kv) return take_start("cu_seqlens_kv", s->cu_seqlens_kv, b, &r->first_key, &r->keys, err);
    if (!s->kv_lens) return ATTUNE_OK;
    const int64_t most = c->d->page_size ? s->max_pages * c->d->page_size : s->seq_kv;
    if (s->kv_lens[b] < 0 || s->kv_lens[b] > most)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "kv_lens[%lld] is %d; there is room for 0 to %lld keys",
                       (long long)b, s->kv_lens[b], (long long)most);
    r->keys = s->kv_lens[b];
    return ATTUNE_OK;
}

static attune_status take_range(const call *c, int64_t b, range *r, at_error *err) {
    static const int64_t MOST_KEYS = 1 << 30; /* so that numbers of keys fit into i32 */
    const attune_index_step *s = c->step;
    *r = (range){.queries = s->seq_q, .keys = s->seq_kv};
    if (s->cu_seqlens_q && take_start("cu_seqlens_q", s->cu_seqlens_q, b, &r->first_query, &r->queries, err))
        return err->status;
    if (take_keys(c, b, r, err)) return err->status;
    if (r->keys <= MOST_KEYS) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "sequence %lld has %lld keys; it may have %lld", (long long)b,
                   (long long)r->keys, (long long)MOST_KEYS);
}

static attune_status check_pages(const call *c, int64_t b, int64_t keys, at_error *err) {
    const attune_index_step *s = c->step;
    const int64_t stride = s->block_table_stride ? s->block_table_stride : s->max_pages;
    const int32_t *const row = s->block_table + b * stride;
    for (int64_t i = 0; i * c->d->page_size < keys; i++)
        if (row[i] < 0 || row[i] >= s->num_pages)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "block_table[%lld, %lld] is %d; there are pages from 0 to %lld", (long long)b, (long long)i,
                           row[i], (long long)s->num_pages - 1);
    return ATTUNE_OK;
}

/* How many keys are visible to query i of a sequence; if causal, it may be negative: as far before the first key. */
static int64_t seen_by(const attune_index_desc *d, const range *r, int64_t i) {
    return d->is_causal ? r->keys - r->queries + i + 1 : r->keys;
}

static int64_t at_least_0(int64_t x) { return x > 0 ? x : 0; }

/* Adds the tasks of a sequence, and the lengths of its lists. */
static void add_tasks(call *c, int64_t b, const range *r) {
    const attune_index_step *s = c->step;
    const bool is_one = s->cu_seqlens_q != NULL;
    for (int64_t i = 0, rows = c->rows; i < r->queries; i += rows) {
        int32_t *const row = c->work[c->items++];
        row[IDX_BATCH] = is_one ? 0 : (int32_t)b;
        row[IDX_TOKEN] = (int32_t)(r->first_query + i);
        row[IDX_ROWS] = (int32_t)(r->queries - i < rows ? r->queries - i : rows);
        row[IDX_SEQUENCE] = s->cu_seqlens_kv && !c->is_any ? 0 : (int32_t)b;
        row[IDX_FIRST_KEY] = (int32_t)r->first_key;
        row[IDX_SEEN] = (int32_t)seen_by(c->d, r, i);
        c->pairs += (double)row[IDX_ROWS] * (double)at_least_0(row[IDX_SEEN]);
    }
}

static attune_status find_work(call *c, at_error *err) {
    const attune_index_step *s = c->step;
    int64_t items = 0;
    range r;
    for (int64_t b = 0, rows = c->rows; b < s->batch; b++) {
        if (take_range(c, b, &r, err) || (c->d->page_size && check_pages(c, b, r.keys, err))) return err->status;
        items += (r.queries + rows - 1) / rows;
        c->queries += r.queries;
        if (at_check_size("the number of queries", c->queries, 0, INT32_MAX, err)) return err->status;
        if (r.queries && seen_by(c->d, &r, r.queries - 1) > c->most_keys)
            c->most_keys = seen_by(c->d, &r, r.queries - 1);
    }
    if (!c->queries) return ATTUNE_OK;
    c->tokens = s->cu_seqlens_q ? c->queries : s->seq_q;
    c->keys = s->cu_seqlens_kv ? r.first_key + r.keys : c->d->page_size ? c->d->page_size : s->seq_kv;
    c->sequences = s->cu_seqlens_kv ? 1 : c->d->page_size ? s->num_pages : s->batch;
    c->work = malloc((size_t)items * sizeof *c->work);
    if (!c->work) return at_fail_memory(err, (size_t)items * sizeof *c->work);
    for (int64_t b = 0; b < s->batch; b++) {
        if (take_range(c, b, &r, err)) return err->status;
        add_tasks(c, b, &r);
    }
    return ATTUNE_OK;
}

attune_status idx_count_queries(const attune_index *index, const attune_index_step *step, int64_t *queries,
                                at_error *err) {
    const call c = {.d = &index->desc, .step = step};
    range r;
    *queries = 0;
    if (check_sizes(c.d, step, err)) return err->status;
    for (int64_t b = 0; b < step->batch; b++) {
        if (take_range(&c, b, &r, err)) return err->status;
        *queries += r.queries;
        if (at_check_size("the number of queries", *queries, 0, INT32_MAX, err)) return err->status;
    }
    return ATTUNE_OK;
}

static void write_lens(const call *c) {
    const attune_index_step *s = c->step;
    const int64_t most = c->d->num_ids;
    int32_t *len = s->lens;
    for (int64_t item = 0; len && item < c->items; item++)
        for (int32_t i = 0; i < c->work[item][IDX_ROWS]; i++) {
            const int64_t seen = at_least_0(c->work[item][IDX_SEEN] + (c->d->is_causal ? i : 0));
            *len++ = (int32_t)(seen < most ? seen : most);
        }
}

/* ---- Tensors ---- */

static attune_status add_buffer(call *c, const char *name, const void *data, at_error *err) {
    if (!data) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL", name);
    c->buffers[c->num_buffers++] = (void *)(uintptr_t)data;
    return ATTUNE_OK;
}

static void add_scalar(call *c, int64_t value) { c->scalars[c->num_scalars++] = value; }

/* Binds data and strides of an input; a view whose strides are all 0 is contiguous. `rows`: rows of a token. */
static attune_status add_view(call *c, const char *name, const attune_view *view, int64_t tokens, int64_t rows,
                              int64_t columns, bool has_head, at_error *err) {
    attune_view v = *view;
    if (!v.data && tokens) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL", name);
    if (v.batch < 0 || v.head < 0 || v.token < 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has a negative stride", name);
    if (v.column != 0 && v.column != 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s.column is %lld; it must be 0 or 1", name, (long long)v.column);
    if (!v.batch && !v.head && !v.token) v.head = columns, v.token = rows * columns, v.batch = tokens * v.token;
    c->buffers[c->num_buffers++] = v.data ? (void *)(uintptr_t)v.data : c->work; /* of no tokens nothing is read */
    add_scalar(c, v.batch);
    add_scalar(c, v.token);
    if (has_head) add_scalar(c, v.head);
    return ATTUNE_OK;
}

/* Arguments in the order of the kernel's parameters. */
static attune_status describe(call *c, at_error *err) {
    const attune_index_desc *d = c->d;
    const attune_index_step *s = c->step;
    const int64_t keys = c->sequences ? c->keys : 0; /* without pages there are none */
    add_scalar(c, s->cu_seqlens_q ? 1 : s->batch);
    add_scalar(c, c->tokens);
    add_scalar(c, c->queries);
    add_scalar(c, c->sequences ? c->sequences : 1);
    if (d->page_size || c->is_any) {
        add_scalar(c, s->batch);
        add_scalar(c, d->page_size && s->max_pages ? s->max_pages : 1);
    } else {
        add_scalar(c, c->keys ? c->keys : 1);
    }
    if (add_view(c, "q", &s->q, c->tokens, d->num_heads, d->head_dim, true, err) ||
        add_view(c, "k", &s->k, keys, 1, d->head_dim, false, err) ||
        add_view(c, "w", &s->w, c->tokens, 1, d->num_heads, false, err))
        return err->status;
    if (idx_has(d, IDX_Q_SCALE) && (add_view(c, "q_scale", &s->q_scale, c->tokens, 1, d->num_heads, false, err) ||
                                    add_view(c, "k_scale", &s->k_scale, keys, 1, 1, false, err)))
        return err->status;
    if (d->page_size) {
        add_scalar(c, s->block_table_stride ? s->block_table_stride : s->max_pages);
        if (add_buffer(c, "block_table", s->block_table, err)) return err->status;
    } else if (c->is_any) {
        c->table = malloc((size_t)s->batch * sizeof *c->table);
        if (!c->table) return at_fail_memory(err, (size_t)s->batch * sizeof *c->table);
        for (int64_t b = 0; b < s->batch; b++) c->table[b] = s->cu_seqlens_kv ? 0 : (int32_t)b;
        add_scalar(c, 1);
        add_buffer(c, "block_table", c->table, err);
    }
    if (add_buffer(c, "work", c->work, err) || add_buffer(c, "ids", s->ids, err)) return err->status;
    return d->has_scores ? add_buffer(c, "scores", s->scores, err) : ATTUNE_OK;
}

/* ---- Steps ---- */

/* Keys are divided if there are too few queries for all threads. A part is at least a few times as long as its list. */
static void divide_keys(call *c, uint32_t workers) {
    enum { TASKS = 4, LISTS = 4, LEAST = 2048 };
    int64_t chunks = 1, keys = c->most_keys > 0 ? c->most_keys : 1;
    const int64_t wanted = TASKS * (int64_t)workers;
    if (workers > 1 && c->items < wanted) {
        const int64_t part = LISTS * c->d->num_ids > LEAST ? LISTS * c->d->num_ids : LEAST;
        chunks = (wanted + c->items - 1) / c->items;
        if (chunks > (keys + part - 1) / part) chunks = (keys + part - 1) / part;
    }
    add_scalar(c, c->items);
    add_scalar(c, chunks);
    add_scalar(c, (keys + chunks - 1) / chunks);
    add_scalar(c, chunks > 1 ? c->items : 0);
    add_scalar(c, chunks > 1 ? c->queries : 0);
    if (!c->is_any) return;
    add_scalar(c, c->d->num_heads);
    add_scalar(c, c->d->num_ids);
    add_scalar(c, c->keys ? c->keys : 1);
    add_scalar(c, c->d->is_causal);
}

static attune_status run_kernel(attune_index *x, call *c, bool is_interpreted, at_error *err) {
    const attune_index_step *const s = c->step;
    const double flops = 2 * (double)c->d->num_heads * (double)c->d->head_dim * c->pairs;
    at_team team;
    if (at_operator_team(x->described.context, s->runner, s->max_threads, &team, err)) return err->status;
    divide_keys(c, at_workers_of(&team, at_work_of(flops, x->described.context->target)));
    const at_described_call called = {c->buffers, c->num_buffers, c->scalars, flops};
    const at_described_step how = {s->runner, s->max_threads, s->cancel, is_interpreted};
    return at_described_execute_by(&x->described, c->kernel, &called, &how, err);
}

/* A kernel of tier 0 has tasks of its own size. */
static attune_status take_kernel(attune_index *x, call *c, at_error *err) {
    if (at_described_kernel(&x->described, IDX_OWN, &c->kernel, err)) return err->status;
    c->is_any = c->kernel->is_general;
    c->rows = c->is_any ? IDX_ANY_TASK : idx_rows(c->d);
    return ATTUNE_OK;
}

attune_status idx_run_step(attune_index *x, const attune_index_step *s, bool is_interpreted, at_error *err) {
    call c = {.d = &x->desc, .step = s};
    if (!check_sizes(c.d, s, err) && !take_kernel(x, &c, err) && !find_work(&c, err) && c.queries &&
        !describe(&c, err) && !run_kernel(x, &c, is_interpreted, err))
        write_lens(&c);
    free(c.work);
    free(c.table);
    return err->status;
}

attune_status idx_run(at_described *index, const void *given, bool is_interpreted, at_error *err) {
    attune_index_step s;
    if (at_copy_in(&idx_described.step, given, &s, err)) return err->status;
    return idx_run_step((attune_index *)index, &s, is_interpreted, err);
}
