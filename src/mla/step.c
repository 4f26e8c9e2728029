/* A step of an MLA block: rows of the cache and queries of all tokens, attention in the form of each sequence, the
 * output projection.
 *
 * Adjacent sequences in the absorbed form are one call of attention. A sequence in the unabsorbed form takes a call for
 * each heads_at_once heads, whose keys and values are computed before it. */
#include "mla/mla.h"

#include "base/integers.h"

#include <string.h>

enum { PLACE = 3 }; /* page, row of the page, position */

/* A step that was checked. */
typedef struct call {
    attune_mla *mla;
    const attune_mla_desc *d;
    const attune_mla_step *step;
    bool is_interpreted;
    size_t size;              /* of an element */
    int64_t tokens;           /* of all sequences */
    int64_t pages, page_rows; /* first dim of the cache: pages, or sequences */
    int64_t page_stride, row_stride, x_stride, out_stride, table_stride;
    /* In the workspace. */
    int32_t *starts;    /* [batch + 1] */
    int32_t *lens;      /* [batch] */
    int32_t *run;       /* [batch + 1]: starts of the sequences of a run */
    int32_t *places;    /* [tokens, PLACE] */
    int32_t *keys;      /* [longest unabsorbed sequence, PLACE] */
    int32_t *list_lens; /* [tokens]: lengths of lists if all are full */
    char *q, *heads;    /* [tokens, heads, dim] */
    char *part;         /* what a run needs */
} call;

/* ---- Checks ---- */

static attune_status fail(at_error *err, const char *sentence) {
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s", sentence);
}

static attune_status check_sizes(const call *c, at_error *err) {
    const attune_mla_step *s = c->step;
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", s->batch},
                 {"seq", s->seq},
                 {"num_pages", s->num_pages},
                 {"max_pages", s->max_pages},
                 {"cache_rows", s->cache_rows},
                 {"num_positions", s->num_positions},
                 {"block_table_stride", s->block_table_stride},
                 {"num_ids", s->num_ids}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 0 || sizes[i].value > INT32_MAX)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld; it must be from 0 to 2147483647", sizes[i].name,
                           (long long)sizes[i].value);
    if (!c->d->page_size && s->cu_seqlens)
        return fail(err, "there are cu_seqlens, but page_size is 0: sequences of different lengths need pages");
    if (s->kv_ids && !c->mla->listed) return fail(err, "there are kv_ids, but has_ids of the description is 0");
    if (!s->kv_ids && s->kv_id_lens) return fail(err, "there are kv_id_lens, but kv_ids is NULL");
    if (s->kv_ids && !s->num_ids) return fail(err, "num_ids is 0; lists have at least one place");
    if (c->d->page_size && s->block_table_stride && s->block_table_stride < s->max_pages)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "block_table_stride is %lld; rows have %lld pages",
                       (long long)s->block_table_stride, (long long)s->max_pages);
    return ATTUNE_OK;
}

static attune_status check_pointers(const call *c, at_error *err) {
    const attune_mla_step *s = c->step;
    const bool has_pages = c->d->page_size > 0;
    const struct {
        const char *name;
        const void *pointer;
        bool is_needed;
    } all[] = {{"x", s->x.data, true},
               {"out", s->out.data, true},
               {"cache", s->cache.data, true},
               {"cos", s->cos, true},
               {"sin", s->sin, true},
               {"block_table", s->block_table, has_pages},
               {"kv_lens", s->kv_lens, has_pages}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].is_needed && !all[i].pointer)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL", all[i].name);
    return ATTUNE_OK;
}

static attune_status check_stride(const char *name, int64_t stride, int64_t least, at_error *err) {
    if (stride >= least) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has rows %lld elements apart; they would overlap below %lld", name,
                   (long long)stride, (long long)least);
}

static attune_status check_views(const call *c, at_error *err) {
    const attune_mla_step *s = c->step;
    const int64_t width = mla_width(c->d), columns[] = {s->x.column, s->out.column, s->cache.column};
    for (int i = 0; i < 3; i++)
        if (columns[i] != 0 && columns[i] != 1) return fail(err, "elements of a row must lie side by side");
    if (c->x_stride < 0) return fail(err, "x has a negative stride");
    if (check_stride("out", c->out_stride, c->d->out_dim, err) || check_stride("cache", c->row_stride, width, err))
        return err->status;
    const int64_t least = (c->page_rows - 1) * c->row_stride + width;
    if (c->pages > 1 && c->page_stride < least)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "cache has %s %lld elements apart; they would overlap below %lld",
                       c->d->page_size ? "pages" : "sequences", (long long)c->page_stride, (long long)least);
    return ATTUNE_OK;
}

static void settle_views(call *c) {
    const attune_mla_step *s = c->step;
    c->pages = c->d->page_size ? s->num_pages : s->batch;
    c->page_rows = c->d->page_size ? c->d->page_size : s->cache_rows;
    c->row_stride = s->cache.token || s->cache.batch ? s->cache.token : mla_width(c->d);
    c->page_stride = s->cache.token || s->cache.batch ? s->cache.batch : c->page_rows * c->row_stride;
    c->x_stride = s->x.token ? s->x.token : c->d->embed_dim;
    c->out_stride = s->out.token ? s->out.token : c->d->out_dim;
    c->table_stride = s->block_table_stride ? s->block_table_stride : s->max_pages;
}

static int64_t new_tokens(const call *c, int64_t b) { return c->starts[b + 1] - c->starts[b]; }

static attune_status find_lengths(call *c, at_error *err) {
    const attune_mla_step *s = c->step;
    const int64_t most = c->d->page_size ? s->max_pages * c->d->page_size : s->cache_rows;
    c->starts[0] = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t end = s->cu_seqlens ? s->cu_seqlens[b + 1] : (b + 1) * s->seq;
        if (end < c->starts[b] || end > INT32_MAX || (s->cu_seqlens && s->cu_seqlens[0]))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "cu_seqlens[%lld] is %lld; it must rise from 0",
                           (long long)b + 1, (long long)end);
        c->starts[b + 1] = (int32_t)end;
        c->lens[b] = s->kv_lens ? s->kv_lens[b] : (int32_t)s->cache_rows;
        if (c->lens[b] < new_tokens(c, b) || c->lens[b] > most)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "sequence %lld has %d tokens in all; it has %lld new ones, and the cache room for %lld",
                           (long long)b, (int)c->lens[b], (long long)new_tokens(c, b), (long long)most);
    }
    c->tokens = c->starts[s->batch];
    return ATTUNE_OK;
}

static attune_status check_table(const call *c, at_error *err) {
    const attune_mla_step *s = c->step;
    for (int64_t b = 0; c->d->page_size && b < s->batch; b++)
        for (int64_t i = 0; i < ceil_div(c->lens[b], c->d->page_size); i++) {
            const int32_t page = s->block_table[b * c->table_stride + i];
            if (page < 0 || page >= s->num_pages)
                return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                               "block_table[%lld, %lld] is %d; there are pages from 0 to %lld", (long long)b,
                               (long long)i, (int)page, (long long)s->num_pages - 1);
        }
    return ATTUNE_OK;
}

/* ---- Lists of keys ---- */

static attune_status check_list(const call *c, int64_t b, int64_t token, int32_t count, at_error *err) {
    const attune_mla_step *s = c->step;
    const int32_t *const ids = s->kv_ids + token * s->num_ids;
    if (count < 0 || count > s->num_ids)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "kv_id_lens[%lld] is %d; it must be from 0 to %lld (num_ids)",
                       (long long)token, count, (long long)s->num_ids);
    for (int32_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= c->lens[b])
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "kv_ids has key %d at place %d of the list of token %lld; sequence %lld has %d tokens",
                           ids[i], i, (long long)token, (long long)b, c->lens[b]);
        if (c->d->reproducible && i && ids[i] <= ids[i - 1])
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "kv_ids has key %d after key %d in the list of token %lld; with reproducible they must "
                           "ascend",
                           ids[i], ids[i - 1], (long long)token);
    }
    return ATTUNE_OK;
}

/* Checked before anything is written: attention checks them, too, but only after rows of the cache were written. */
static attune_status check_lists(const call *c, at_error *err) {
    const attune_mla_step *s = c->step;
    for (int64_t b = 0; s->kv_ids && b < s->batch; b++)
        for (int64_t token = c->starts[b]; token < c->starts[b + 1]; token++)
            if (check_list(c, b, token, s->kv_id_lens ? s->kv_id_lens[token] : (int32_t)s->num_ids, err))
                return err->status;
    return ATTUNE_OK;
}

/* ---- Places ---- */

static void place_key(const call *c, int64_t b, int64_t key, int32_t place[PLACE]) {
    const int64_t size = c->d->page_size;
    place[0] = size ? c->step->block_table[b * c->table_stride + key / size] : (int32_t)b;
    place[1] = (int32_t)(size ? key % size : key);
    place[2] = 0;
}

static attune_status place_tokens(const call *c, at_error *err) {
    const attune_mla_step *s = c->step;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0, count = new_tokens(c, b); i < count; i++) {
            const int64_t token = c->starts[b] + i, key = c->lens[b] - count + i;
            int32_t *place = c->places + PLACE * token;
            const int64_t position = s->positions ? s->positions[token] : key;
            if (position < 0 || position >= s->num_positions)
                return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                               "token %lld has the position %lld; cos and sin have %lld rows", (long long)token,
                               (long long)position, (long long)s->num_positions);
            place_key(c, b, key, place);
            place[2] = (int32_t)position;
        }
    return ATTUNE_OK;
}

/* ---- Forms ---- */

static bool is_absorbed(const call *c, int64_t b) {
    const attune_mla_desc *d = c->d;
    if (c->step->kv_ids) return true;
    if (d->form != ATTUNE_MLA_BY_COST) return d->form == ATTUNE_MLA_ABSORBED;
    const double tokens = (double)new_tokens(c, b), all = c->lens[b], pairs = tokens * all - tokens * (tokens - 1) / 2;
    const double rank = (double)d->kv_lora_rank, rope = (double)d->qk_rope_head_dim;
    const double dims = (double)(d->qk_nope_head_dim + d->v_head_dim);
    return tokens * rank * dims + pairs * (2 * rank + rope) <= all * rank * dims + pairs * (dims + rope);
}

/* How many sequences from b on are one call: all in the absorbed form, or one in the other. */
static int64_t end_of_run(const call *c, int64_t b) {
    if (!is_absorbed(c, b)) return b + 1;
    while (b < c->step->batch && (is_absorbed(c, b) || !new_tokens(c, b))) b++;
    return b;
}

/* ---- The workspace ---- */

static int64_t head_dim(const attune_mla_desc *d) { return d->qk_nope_head_dim + d->qk_rope_head_dim; }

/* Bytes of memory for the runs: those of the largest. */
static size_t part_bytes(const call *c, int64_t *longest) {
    const attune_mla_desc *d = c->d;
    size_t most = 0;
    *longest = 0;
    for (int64_t b = 0, end; b < c->step->batch; b = end) {
        end = end_of_run(c, b);
        int64_t elements = (c->starts[end] - c->starts[b]) * d->num_heads * (mla_width(d) + d->kv_lora_rank);
        if (!is_absorbed(c, b)) {
            elements = c->lens[b] * mla_heads_at_once(c->d) * (head_dim(d) + d->v_head_dim);
            *longest = max_of(*longest, c->lens[b]);
        }
        const size_t bytes = (size_t)elements * c->size;
        if (bytes > most) most = bytes;
    }
    return most;
}

static void *take(char **at, size_t bytes) {
    enum { LINE = 64 };
    void *const taken = *at;
    *at += (bytes + LINE - 1) / LINE * LINE;
    return taken;
}

static void *take_memory(call *c, at_error *err) {
    enum { PARTS = 6, LINE = 64 };
    const attune_mla_desc *d = c->d;
    int64_t longest;
    const size_t part = part_bytes(c, &longest), places = sizeof(int32_t) * PLACE;
    const size_t q = (size_t)(c->tokens * d->num_heads * head_dim(d)) * c->size;
    const size_t heads = (size_t)(c->tokens * d->num_heads * d->v_head_dim) * c->size;
    const bool has_whole_lists = c->step->kv_ids && !c->step->kv_id_lens;
    const size_t list_lens = has_whole_lists ? sizeof(int32_t) * (size_t)c->tokens : 0;
    const size_t bytes = part + q + heads + list_lens + places * (size_t)(c->tokens + longest) + PARTS * LINE;
    void *const memory = at_spares_take(&c->mla->described.context->spares, bytes);
    if (!memory) {
        at_fail_memory(err, bytes);
        return NULL;
    }
    char *at = memory;
    c->q = take(&at, q), c->heads = take(&at, heads);
    c->places = take(&at, places * (size_t)c->tokens), c->keys = take(&at, places * (size_t)longest);
    c->list_lens = take(&at, list_lens);
    for (int64_t i = 0; has_whole_lists && i < c->tokens; i++) c->list_lens[i] = (int32_t)c->step->num_ids;
    c->part = take(&at, part);
    return memory;
}

/* ---- Kernels ---- */

/* The arguments of a kernel, in the order of its parameters. */
typedef struct arguments {
    void *buffers[12];
    int64_t scalars[12];
    size_t num_buffers, num_scalars;
} arguments;

static void add_buffer(arguments *a, const void *buffer) { a->buffers[a->num_buffers++] = (void *)(uintptr_t)buffer; }
static void add_scalar(arguments *a, int64_t scalar) { a->scalars[a->num_scalars++] = scalar; }

static arguments begin(int64_t rows) {
    arguments a = {.num_buffers = 0};
    if (rows > 1) add_scalar(&a, rows);
    return a;
}

static void add_places(const call *c, arguments *a, const int32_t *places) {
    add_buffer(a, places);
    add_scalar(a, c->pages), add_scalar(a, c->page_rows);
    add_scalar(a, c->page_stride), add_scalar(a, c->row_stride);
    add_buffer(a, c->step->cache.data);
}

static double flops_of(const call *c, mla_kind kind, int64_t rows) {
    const attune_mla_desc *d = c->d;
    const int64_t q_depth = d->q_lora_rank ? d->q_lora_rank : d->embed_dim;
    const int64_t of_token[MLA_NUM_KINDS] = {
        d->embed_dim * (d->q_lora_rank + mla_width(d)) + q_depth * d->num_heads * head_dim(d),
        d->num_heads * d->qk_nope_head_dim * d->kv_lora_rank, d->num_heads * d->v_head_dim * d->kv_lora_rank,
        mla_heads_at_once(c->d) * (d->qk_nope_head_dim + d->v_head_dim) * d->kv_lora_rank,
        d->num_heads * d->v_head_dim * d->out_dim};
    return 2 * (double)rows * (double)of_token[kind];
}

static attune_status run_kernel(const call *c, mla_kind kind, int64_t rows, const arguments *a, at_error *err) {
    const attune_mla_step *const s = c->step;
    const at_described_call called = {a->buffers, a->num_buffers, a->scalars, flops_of(c, kind, rows)};
    const at_described_step how = {s->runner, s->max_threads, s->cancel, c->is_interpreted};
    uint32_t size = 0;
    while (size < MLA_NUM_SIZES - 1 && rows > mla_rows[size]) size++;
    return at_described_execute(&c->mla->described, (uint32_t)kind * MLA_NUM_SIZES + size, &called, &how, err);
}

static attune_status project(const call *c, at_error *err) {
    const attune_mla *mla = c->mla;
    arguments a = begin(c->tokens);
    add_scalar(&a, c->x_stride);
    add_buffer(&a, c->step->x.data);
    if (mla->matrix[MLA_Q_LOW]) add_buffer(&a, mla->matrix[MLA_Q_LOW]);
    add_buffer(&a, mla->matrix[MLA_Q]);
    add_buffer(&a, mla->matrix[MLA_KV_LOW]);
    if (mla->matrix[MLA_Q_LOW]) add_buffer(&a, mla->q_norm);
    add_buffer(&a, mla->kv_norm);
    add_scalar(&a, c->step->num_positions);
    add_buffer(&a, c->step->cos);
    add_buffer(&a, c->step->sin);
    add_places(c, &a, c->places);
    add_buffer(&a, c->q);
    return run_kernel(c, MLA_PROJECT, c->tokens, &a, err);
}

static attune_status project_out(const call *c, at_error *err) {
    arguments a = begin(c->tokens);
    add_buffer(&a, c->mla->matrix[MLA_O]);
    add_scalar(&a, c->d->num_heads * c->d->v_head_dim);
    add_buffer(&a, c->heads);
    add_scalar(&a, c->out_stride);
    add_buffer(&a, c->step->out.data);
    return run_kernel(c, MLA_OUT, c->tokens, &a, err);
}

/* Converts queries to latent queries, or latent outputs to heads. */
static attune_status multiply_heads(const call *c, mla_kind kind, int64_t rows, const void *from, void *to,
                                    at_error *err) {
    arguments a = begin(rows);
    add_buffer(&a, c->mla->matrix[kind == MLA_ABSORB ? MLA_UK : MLA_UV]);
    add_buffer(&a, from);
    add_buffer(&a, to);
    return run_kernel(c, kind, rows, &a, err);
}

static attune_status expand(const call *c, int64_t b, int64_t head, void *keys, void *values, at_error *err) {
    const attune_mla *mla = c->mla;
    arguments a = begin(c->lens[b]);
    add_buffer(&a, mla->matrix[MLA_UK_BACK] + (size_t)head * mla->head_bytes[MLA_UK_BACK]);
    add_buffer(&a, mla->matrix[MLA_UV] + (size_t)head * mla->head_bytes[MLA_UV]);
    add_places(c, &a, c->keys);
    add_buffer(&a, keys);
    add_buffer(&a, values);
    return run_kernel(c, MLA_EXPAND, c->lens[b], &a, err);
}

/* ---- Attention ---- */

static attune_status attend(attune_attention *attention, const call *c, attune_step *step, at_error *err) {
    step->max_threads = c->step->max_threads;
    step->runner = c->step->runner;
    step->cancel = c->step->cancel;
    const attune_status status = attune_attention_run(attention, step);
    return status ? at_fail(err, status, "%s", attune_last_message()) : ATTUNE_OK;
}

/* The lists of a run: [1, tokens, num_ids] with pages, and [batch, tokens, num_ids] without. */
typedef struct key_lists {
    int64_t dims[3];
    attune_dltensor tensor[2];
    attune_binding binding[2];
} key_lists;

static void bind_lists(const call *c, key_lists *l, attune_step *step) {
    enum { SIGNED = 0, ON_CPU = 1 };
    const attune_mla_step *s = c->step;
    const void *const data[] = {s->kv_ids, s->kv_id_lens ? s->kv_id_lens : c->list_lens};
    static const char *const names[] = {"kv_ids", "kv_id_lens"};
    l->dims[0] = c->d->page_size ? 1 : s->batch, l->dims[1] = c->d->page_size ? c->tokens : s->seq;
    l->dims[2] = s->num_ids;
    for (int i = 0; i < 2; i++) {
        l->tensor[i] = (attune_dltensor){.data = (void *)(uintptr_t)data[i],
                                         .device_type = ON_CPU,
                                         .ndim = 3 - i,
                                         .dtype_code = SIGNED,
                                         .dtype_bits = 32,
                                         .dtype_lanes = 1,
                                         .shape = l->dims};
        l->binding[i] = (attune_binding){names[i], &l->tensor[i]};
    }
    step->bindings = l->binding, step->num_bindings = 2;
}

static attune_status attend_absorbed(const call *c, int64_t first, int64_t end, at_error *err) {
    const attune_mla_desc *d = c->d;
    const int64_t token = c->starts[first], rows = c->starts[end] - token;
    char *const q = c->part, *const latent = q + (size_t)(rows * d->num_heads * mla_width(d)) * c->size;
    const char *const from = c->q + (size_t)(token * d->num_heads * head_dim(d)) * c->size;
    if (!rows || multiply_heads(c, MLA_ABSORB, rows, from, q, err)) return err->status;
    for (int64_t b = first; b <= end; b++) c->run[b - first] = c->starts[b] - (int32_t)token;
    attune_step s = ATTUNE_STEP_INIT;
    s.batch = end - first;
    s.q.data = q, s.out.data = latent;
    s.k_cache.data = c->step->cache.data;
    s.k_cache.batch = c->page_stride, s.k_cache.head = mla_width(d), s.k_cache.token = c->row_stride;
    s.kv_lens = c->lens + first;
    if (d->page_size) {
        s.cu_seqlens_q = c->run;
        s.block_table = c->step->block_table + first * c->table_stride;
        s.block_table_stride = c->table_stride;
        s.max_pages = c->step->max_pages, s.num_pages = c->pages;
    } else {
        s.seq_q = c->step->seq, s.seq_kv = c->page_rows;
        s.k_cache.data = (char *)s.k_cache.data + (size_t)(first * c->page_stride) * c->size;
    }
    s.v_cache = s.k_cache;
    key_lists l;
    if (c->step->kv_ids) bind_lists(c, &l, &s);
    if (attend(c->step->kv_ids ? c->mla->listed : c->mla->absorbed, c, &s, err)) return err->status;
    char *const to = c->heads + (size_t)(token * d->num_heads * d->v_head_dim) * c->size;
    return multiply_heads(c, MLA_VALUES, rows, latent, to, err);
}

static attune_status attend_unabsorbed(const call *c, int64_t b, at_error *err) {
    const attune_mla_desc *d = c->d;
    const int64_t token = c->starts[b], rows = new_tokens(c, b), keys = c->lens[b], heads = mla_heads_at_once(c->d);
    char *const k = c->part, *const v = k + (size_t)(keys * heads * head_dim(d)) * c->size;
    const int32_t starts_q[] = {0, (int32_t)rows}, starts_kv[] = {0, (int32_t)keys};
    for (int64_t key = 0; key < keys; key++) place_key(c, b, key, c->keys + PLACE * key);
    for (int64_t head = 0; head < d->num_heads && !err->status; head += heads) {
        if (expand(c, b, head, k, v, err)) return err->status;
        attune_step s = ATTUNE_STEP_INIT;
        s.batch = 1;
        s.cu_seqlens_q = starts_q, s.cu_seqlens_kv = starts_kv;
        s.q.data = c->q + (size_t)((token * d->num_heads + head) * head_dim(d)) * c->size;
        s.q.token = d->num_heads * head_dim(d), s.q.head = head_dim(d), s.q.batch = rows * s.q.token;
        s.k.data = k, s.v.data = v;
        s.out.data = c->heads + (size_t)((token * d->num_heads + head) * d->v_head_dim) * c->size;
        s.out.token = d->num_heads * d->v_head_dim, s.out.head = d->v_head_dim, s.out.batch = rows * s.out.token;
        attend(c->mla->unabsorbed, c, &s, err);
    }
    return err->status;
}

/* ---- The step ---- */

static attune_status compute(call *c, at_error *err) {
    void *const memory = take_memory(c, err);
    if (!memory) return err->status;
    if (!place_tokens(c, err) && !project(c, err)) {
        for (int64_t b = 0, end; b < c->step->batch && !err->status; b = end) {
            end = end_of_run(c, b);
            if (is_absorbed(c, b))
                attend_absorbed(c, b, end, err);
            else if (new_tokens(c, b))
                attend_unabsorbed(c, b, err);
        }
        if (!err->status) project_out(c, err);
    }
    at_spares_give(&c->mla->described.context->spares, memory);
    return err->status;
}

static attune_status run_step(attune_mla *mla, const attune_mla_step *step, bool is_interpreted, at_error *err) {
    call c = {.mla = mla, .d = &mla->desc, .step = step, .is_interpreted = is_interpreted};
    c.size = mha_weight_bytes(c.d->dtype);
    if (check_sizes(&c, err) || !step->batch) return err->status;
    settle_views(&c);
    const size_t bytes = (size_t)(3 * step->batch + 2) * sizeof(int32_t);
    int32_t *const lists = at_spares_take(&mla->described.context->spares, bytes);
    if (!lists) return at_fail_memory(err, bytes);
    c.starts = lists, c.run = lists + step->batch + 1, c.lens = c.run + step->batch + 1;
    if (!check_pointers(&c, err) && !check_views(&c, err) && !find_lengths(&c, err) && !check_table(&c, err) &&
        !check_lists(&c, err))
        if (c.tokens) compute(&c, err);
    at_spares_give(&mla->described.context->spares, lists);
    return err->status;
}

attune_status mla_run(at_described *mla, const void *given, bool is_interpreted, at_error *err) {
    attune_mla_step s;
    if (at_copy_in(&mla_described.step, given, &s, err)) return err->status;
    return run_step((attune_mla *)mla, &s, is_interpreted, err);
}
