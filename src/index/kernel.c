/* The kernel of the index, as loop IR: scores of all visible keys, and the best of them.
 *
 *                 heads of a query, in lanes ►         for each key, and each vector of heads:
 *          g  ┌────────┬────────┬────────┐                sum = sum + w max(0, q k)
 *          ▼  │ register tile of q k    │             the lanes of sum are added up for L keys at once, which gives
 *      keys   └────────┴────────┴────────┘             a vector of L scores
 *
 * A task computes some queries of a sequence, and a range of its keys, tile by tile. It copies a tile to scratch in the
 * form that products read, so pages and types are handled once for all queries.
 *
 * The best keys are found exactly, without storing all scores. A score is converted to an integer with the same order,
 * its rank. A query has a list of candidates, and a threshold; keys with a rank above it are appended to the list. When
 * the list is full, the n-th best rank is found bit by bit, by counting; it becomes the threshold, and worse keys are
 * removed. Keys come in ascending order and stay in it; of equal ranks the first ones are kept.
 *
 * With few queries, the keys are divided among tasks, and a second phase merges their lists by the same steps. As the
 * choice is exact, it does not depend on the division. */
#include "index/kernel.h"

#include "described/described.h"
#include "index/writer.h"
#include "problem/problem_fields.h"

#include <stdio.h>

const attune_choice idx_choices[IDX_NUM_CHOICES] = {
    {.name = "keys", .values = (const int32_t[]){4, 6, 12}, .num_values = 3, .usual = 6}};

/* ---- State of the writer ---- */

/* The capacity of a list: at least twice num_ids, so that it is seldom full, and what a tile may add to a list that is
 * not full. */
static long long capacity_of(long long ids) {
    enum { LEAST = 1024, MOST_LANES = 16 };
    return (ids + (ids > LEAST ? ids : LEAST) + TILE + 2 * MOST_LANES + 63) / 64 * 64;
}

int idx_rows(const attune_index_desc *d) {
    enum { MOST = 4, BYTES = 768 * 1024 };
    const long long bytes = 4 * d->num_heads * d->head_dim + 8 * capacity_of(d->num_ids);
    int rows = MOST;
    while (rows > 1 && rows * bytes > BYTES) rows /= 2;
    return rows;
}

static bool read_problem(writer *x, const char *problem) {
    attune_index_desc d;
    uint32_t which;
    if (!at_described_read(&idx_described, problem, &d, &which)) return false;
    x->is_any = which == IDX_ANY;
    x->heads = d.num_heads, x->dim = d.head_dim, x->ids = d.num_ids, x->page = x->is_any ? 1 : d.page_size;
    const long long numbers[] = {x->heads, x->ids, x->page};
    for (int i = 0; i < 3; i++) snprintf(x->numbers[i], sizeof x->numbers[i], "%lld", numbers[i]);
    x->num_heads = x->is_any ? "heads" : x->numbers[0], x->num_ids = x->is_any ? "num_ids" : x->numbers[1];
    x->page_size = x->is_any ? "page_size" : x->numbers[2];
    x->dtype = mha_dtype_name(d.dtype), x->w_dtype = mha_dtype_name(d.w_dtype);
    x->causal = d.is_causal, x->scores = d.has_scores, x->rows = x->is_any ? IDX_ANY_TASK : idx_rows(&d);
    return true;
}

/* Registers of a register tile: keys x vectors sums, a vector of q for each vector, and a key. */
static void choose_sizes(writer *x, const attune_build_request *request) {
    const int room = at_registers_of(request->isa) == 32 ? 24 : 12, most = room == 24 ? 4 : 2;
    x->has_fma = request->has_fma;
    x->has_dot2 = !strcmp(request->isa, "avx512_bf16") || !strcmp(request->isa, "amx");
    x->lanes = request->vector_bytes / 4;
    x->pack = idx_is_i8(x) ? 4 : x->has_dot2 && (idx_is_f8(x) || !strcmp(x->dtype, "bf16")) ? 2 : 1;
    x->units = (x->dim + x->pack - 1) / x->pack;
    x->padded = (x->units + x->lanes - 1) / x->lanes * x->lanes;
    long long vectors = (x->heads + x->lanes - 1) / x->lanes;
    x->vectors = most;
    while (x->vectors > 2 && vectors % x->vectors) x->vectors--;
    if (vectors == 1) x->vectors = 1;
    vectors = (vectors + x->vectors - 1) / x->vectors * x->vectors;
    x->all_heads = vectors * x->lanes;
    x->keys = request->schedule[0];
    while (2 * x->keys * x->vectors <= room && TILE % (2 * x->keys) == 0) x->keys *= 2;
    x->capacity = capacity_of(x->ids);
}

/* ---- The parameters ---- */

static void put_parameters(const writer *x) {
    PUT("kernel @index (\n");
    PUT("  q: %s[batches, tokens, %s, %lld] strides [q_b, q_t, q_h, 1] in,\n", x->dtype, x->num_heads, x->dim);
    if (x->page)
        PUT("  k: %s[sequences, %s, %lld] strides [k_b, k_t, 1] in,\n", x->dtype, x->page_size, x->dim);
    else
        PUT("  k: %s[sequences, keys, %lld] strides [k_b, k_t, 1] in,\n", x->dtype, x->dim);
    PUT("  w: %s[batches, tokens, %s] strides [w_b, w_t, 1] in,\n", x->w_dtype, x->num_heads);
    if (idx_has_scales(x)) {
        PUT("  q_scale: f32[batches, tokens, %lld] strides [q_scale_b, q_scale_t, 1] in,\n", x->heads);
        if (x->page)
            PUT("  k_scale: f32[sequences, %lld] strides [k_scale_b, k_scale_t] in,\n", x->page);
        else
            PUT("  k_scale: f32[sequences, keys] strides [k_scale_b, k_scale_t] in,\n");
    }
    if (x->page) PUT("  table: i32[batch, columns] strides [table_b, 1] in,\n");
    PUT("  work: i32[items, %d] in,\n", IDX_WORK_COLUMNS);
    PUT("  ids: i32[queries, %s] out,\n", x->num_ids);
    if (x->scores) PUT("  scores: f32[queries, %lld] out,\n", x->ids);
    PUT("  batches: idx, tokens: idx, queries: idx, sequences: idx,%s\n",
        x->page ? " batch: idx, columns: idx," : " keys: idx,");
    PUT("  q_b: idx, q_t: idx, q_h: idx, k_b: idx, k_t: idx, w_b: idx, w_t: idx,\n");
    if (idx_has_scales(x)) PUT("  q_scale_b: idx, q_scale_t: idx, k_scale_b: idx, k_scale_t: idx,\n");
    if (x->page) PUT("  table_b: idx,\n");
    PUT("  items: idx, chunks: idx, chunk_keys: idx, merged: idx, merged_rows: idx%s) {\n",
        x->is_any ? ",\n  heads: idx, num_ids: idx, page_size: idx, causal: idx" : "");
    PUT("assume batches >= 1\nassume tokens >= 1\nassume queries >= 1\nassume sequences >= 1\nassume chunks >= "
        "1\nassume chunk_keys >= 1\n");
    PUT("%s", x->page ? "assume batch >= 1\nassume columns >= 1\n" : "assume keys >= 1\n");
    if (x->is_any)
        PUT("assume heads >= 1\nassume heads <= %lld\nassume num_ids >= 1\nassume num_ids <= %lld\n"
            "assume page_size >= 1\nassume causal >= 0\nassume causal <= 1\n",
            x->heads, x->ids);
    PUT("alloc part_ranks: i32[merged_rows, chunks, %s] shared\nalloc part_keys: i32[merged_rows, chunks, %s] "
        "shared\n"
        "alloc part_fill: i32[merged_rows, chunks] shared\n",
        x->num_ids, x->num_ids);
}

/* Sets up a task's queries and their lists. */
static void put_task(const writer *x) {
    static const char *const names[IDX_WORK_COLUMNS] = {"b",        "first_token", "count",
                                                        "sequence", "first_key",   "seen_first"};
    for (int i = 0; i < IDX_WORK_COLUMNS; i++) {
        PUT("let %s%s", names[i], x->phase);
        if (i == IDX_BATCH) PUT(" in 0..batches");
        if (i == IDX_TOKEN) PUT(" in 0..tokens");
        if (i == IDX_ROWS) PUT(" in 1..%d", x->rows + 1);
        if (i == IDX_SEQUENCE) PUT(" in 0..%s", x->page ? "batch" : "sequences");
        PUT(" = cast.idx(work[item%s, %d])\n", x->phase, i);
    }
    if (x->is_any) PUT("let ids%s = cast.i32(num_ids)\n", *x->phase ? x->phase : ".own");
    PUT("alloc ranks%s: i32[%d, %lld] scratch\nalloc listed%s: i32[%d, %lld] scratch\n", x->phase, x->rows, x->capacity,
        x->phase, x->rows, x->capacity);
    PUT("alloc fill%s: i32[%d] scratch\nalloc least%s: i32[%d] scratch\n", x->phase, x->rows, x->phase, x->rows);
}

void idx_put_row(const writer *x, const char *suffix) {
    PUT("let token%s in 0..tokens = first_token%s + r%s\n", suffix, x->phase, suffix);
    PUT("let row%s in 0..queries = (b%s * tokens) + token%s\n", suffix, x->phase, suffix);
    if (x->is_any)
        PUT("let seen%s = max(seen_first%s + (r%s * causal), 0)\n", suffix, x->phase, suffix);
    else if (x->causal)
        PUT("let seen%s = max(seen_first%s + r%s, 0)\n", suffix, x->phase, suffix);
    else
        PUT("let seen%s = max(seen_first%s, 0)\n", suffix, x->phase);
}

void idx_put_ids(const writer *x) {
    if (x->is_any)
        PUT("ids%s", *x->phase ? x->phase : ".own");
    else
        PUT("%lld:i32", x->ids);
}

void idx_put_is_long(const writer *x, const char *suffix) {
    if (x->scores)
        PUT("seen%s > 0", suffix);
    else
        PUT("seen%s > %s", suffix, x->num_ids);
}

/* ---- The phases ---- */

static void put_memory(const writer *x) {
    const int lanes = x->lanes;
    PUT("alloc turned: %s[%d, %lld] scratch\nalloc packed: %s[%d, %lld, %lld] scratch\n", idx_unit_type(x), lanes,
        x->padded, idx_unit_type(x), x->rows, x->units, x->all_heads);
    if (!idx_is_direct(x)) PUT("alloc key_units: %s[%d, %lld] scratch\n", idx_unit_type(x), TILE, x->padded);
    PUT("alloc weights: f32[%d, %lld] scratch\nalloc parts: f32[%d, %d] scratch\n", x->rows, x->all_heads, TILE, lanes);
    PUT("alloc new: i32[%d] scratch\nalloc sums: %sx%d[%d, %d] reg\nalloc by_lane: f32x%d[%d] reg\n", lanes,
        idx_is_i8(x) ? "i32" : "f32", lanes, x->keys, x->vectors, lanes, x->keys);
    if (idx_has_scales(x)) PUT("alloc key_scales: f32[%d] scratch\n", TILE);
    if (idx_is_i8(x))
        PUT("alloc offset: i32x%d[] reg\nalloc offsets: i32[%d, %lld] scratch\n", lanes, x->rows, x->all_heads);
}

/* Keys of a chunk, tile by tile. */
static void put_tiles(writer *x) {
    const char *const seen = x->is_any   ? "seen_first + ((count - 1) * causal)"
                             : x->causal ? "seen_first + (count - 1)"
                                         : "seen_first";
    PUT("let begin = chunk * chunk_keys\nlet end = min(begin + chunk_keys, max(%s, 0))\n", seen);
    PUT("if ");
    if (x->scores)
        PUT("end > begin");
    else
        PUT("(end > begin) & (%s > %s)", seen, x->num_ids);
    PUT(" {\nfor first in begin..end by %d {\n", TILE);
    if (!idx_is_direct(x)) idx_put_stage(x);
    PUT("for r in 0..count {\n");
    idx_put_row(x, "");
    PUT("if (seen > first) & (");
    idx_put_is_long(x, "");
    PUT(") {\n");
    idx_put_products(x);
    idx_put_selection(x);
    /* after the last tile, lists are cut to their final length */
    PUT("let room = select((first + %d) >= min(end, seen), ", TILE);
    idx_put_ids(x);
    PUT(", %lld:i32)\nif fill[r] > room {\n", x->capacity - TILE - 2 * x->lanes);
    idx_put_compact(x, "r");
    PUT("}\n}\n}\n}\n}\n");
}

/* Merges the lists of chunks, in the order of their keys. */
static void put_merge(writer *x) {
    x->phase = ".m";
    PUT("parallel for merge in 0..merged {\nlet item.m in 0..items = merge\n");
    put_task(x);
    PUT("for r.m in 0..count.m {\n");
    idx_put_row(x, ".m");
    PUT("if ");
    idx_put_is_long(x, ".m");
    PUT(" {\nlet row.n in 0..merged_rows = row.m\nfill.m[r.m] = 0:i32\nleast.m[r.m] = -2147483648:i32\n");
    PUT("for c in 0..chunks {\nlet have in 0..(%s + 1) = cast.idx(part_fill[row.n, c])\n", x->num_ids);
    PUT("for first.m in 0..have by %d {\nfor i.m in first.m..min(first.m + %d, have) {\n"
        "let rank.m = part_ranks[row.n, c, i.m]\n",
        TILE, TILE);
    idx_put_append(x, "r.m", "rank.m", "part_keys[row.n, c, i.m]");
    PUT("}\nif fill.m[r.m] > %lld:i32 {\n", x->capacity - TILE - 2 * x->lanes);
    idx_put_compact(x, "r.m");
    PUT("}\n}\n}\nif fill.m[r.m] > ");
    idx_put_ids(x);
    PUT(" {\n");
    idx_put_compact(x, "r.m");
    PUT("}\n");
    idx_put_list(x, "r.m", "row.m");
    PUT("}\n}\n}\n");
}

int idx_build(void *user, const attune_build_request *request, attune_ir_writer *w) {
    writer all = {.w = w, .phase = ""}, *const x = &all;
    (void)user;
    if (!read_problem(x, request->problem)) {
        PUT("%s is no problem of the index", request->problem);
        return 1;
    }
    choose_sizes(x, request);
    put_parameters(x);
    PUT("parallel for item in 0..items, chunk in 0..chunks {\n");
    put_task(x);
    put_memory(x);
    idx_put_begin(x);
    put_tiles(x);
    idx_put_end(x);
    PUT("}\n");
    put_merge(x);
    PUT("}\n");
    return 0;
}
