/* The kernel of the index, as loop IR: scores of all visible keys, and the best of them.
 *
 *                 heads of a query, in lanes ►         for each key, and each vector of heads:
 *          g  ┌────────┬────────┬────────┐                sum = sum + w max(0, q k)
 *          ▼  │ register tile of q k    │             the lanes of sum are added up for L keys at once, which gives
 *      keys   └────────┴────────┴────────┘             a vector of L scores
 *
 * A task has some queries of a sequence and a range of its keys. It goes through the keys in tiles, which it copies to
 * scratch as its products need them, so that pages and types are dealt with once for all queries.
 *
 * The best keys are found exactly, without all scores in memory. A score is an integer here, its rank, which orders
 * scores as numbers are ordered. A query has a list of keys that may be among its best, and the least rank that is of
 * interest. Better keys go to the end of the list. Where it is full, the n-th best rank is found bit by bit, by
 * counting, and what is worse goes. Keys come in ascending order and stay so; of equal ranks the first are kept.
 *
 * Where queries are few, the keys are divided among tasks. A second phase makes one list of theirs by the same steps.
 * The choice is exact, so it is the same for every division. */
#include "index/kernel.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { TILE = 48 }; /* keys: a multiple of every choice below, and of the lanes */

const attune_choice idx_choices[IDX_NUM_CHOICES] = {
    {.name = "keys", .values = (const int32_t[]){4, 6, 12}, .num_values = 3, .usual = 6}};

static const char *const dtype_words[] = {
    [ATTUNE_F32] = "f32", [ATTUNE_BF16] = "bf16", [ATTUNE_F16] = "f16", [ATTUNE_I8] = "i8", [ATTUNE_F8] = "f8"};

void idx_print(const attune_index_desc *d, char text[IDX_PROBLEM_BYTES]) {
    snprintf(text, IDX_PROBLEM_BYTES,
             "heads=%lld,dim=%lld,ids=%lld,dtype=%s,w=%s,causal=%d,page=%lld,scores=%d,rows=%d",
             (long long)d->num_heads, (long long)d->head_dim, (long long)d->num_ids, dtype_words[d->dtype],
             dtype_words[d->w_dtype], d->is_causal, (long long)d->page_size, d->has_scores, idx_rows(d));
}

/* ---- What the kernel is written with ---- */

typedef struct writer {
    attune_ir_writer *w;
    long long heads, dim, ids, page;
    char dtype[8], w_dtype[8];
    int causal, scores, rows;
    int lanes, has_fma, has_dot2;
    int pack;                /* numbers of a row that are one unit: a pair of bf16 (of f8 as such), four of i8 */
    long long units, padded; /* of a row, and what scratch has of them */
    int vectors, keys;       /* of a register tile */
    long long all_heads;     /* with those that fill the last tile */
    long long capacity;      /* of a list */
    int names;
    const char *phase; /* what the names of a phase end with */
} writer;

#define PUT(...) attune_ir_print(x->w, __VA_ARGS__)

static bool read_problem(writer *x, const char *problem) {
    const int read =
        sscanf(problem, "heads=%lld,dim=%lld,ids=%lld,dtype=%7[^,],w=%7[^,],causal=%d,page=%lld,scores=%d,rows=%d",
               &x->heads, &x->dim, &x->ids, x->dtype, x->w_dtype, &x->causal, &x->page, &x->scores, &x->rows);
    return read == 9;
}

/* Room for as many keys again, so that a list is seldom full, and for what a tile adds to a list that is not. */
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

static int registers_of(const char *isa) { return strcmp(isa, "avx2") && strcmp(isa, "x86-64") ? 32 : 16; }

static bool is_i8(const writer *x) { return !strcmp(x->dtype, "i8"); }

static bool is_f8(const writer *x) { return !strcmp(x->dtype, "f8"); }

static bool has_scales(const writer *x) { return is_i8(x) || is_f8(x); }

static bool is_f32(const char *dtype) { return !strcmp(dtype, "f32"); }

/* A register tile has keys x vectors sums, a vector of q for each of its vectors, and a key. */
static void choose_sizes(writer *x, const attune_build_request *request) {
    const int room = registers_of(request->isa) == 32 ? 24 : 12, most = room == 24 ? 4 : 2;
    x->has_fma = request->has_fma;
    x->has_dot2 = !strcmp(request->isa, "avx512_bf16") || !strcmp(request->isa, "amx");
    x->lanes = request->vector_bytes / 4;
    x->pack = is_i8(x) ? 4 : x->has_dot2 && (is_f8(x) || !strcmp(x->dtype, "bf16")) ? 2 : 1;
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

static const char *cast(const char *dtype) { return is_f32(dtype) ? "" : "cast.f32"; }

static const char *unit_type(const writer *x) { return x->pack > 1 ? "i32" : "f32"; }

static void put_madd(const writer *x, const char *a, const char *b, const char *c) {
    if (x->has_fma)
        PUT("fma(%s, %s, %s)", a, b, c);
    else
        PUT("(%s * %s) + %s", a, b, c);
}

static void put_pick(const writer *x, const char *a, const char *b, int lanes, int block, int half) {
    PUT("shuffle(%s, %s, [", a, b);
    for (int i = 0, count = 0; i < 2 * lanes; i++)
        if (i % block / (block / 2) == half) PUT("%s%d", count++ ? ", " : "", i);
    PUT("])");
}

/* let to = all lanes of the vector `from` in one, by sums ("+") or maxima ("max"). */
static void put_reduced(writer *x, const char *from, const char *to, const char *op) {
    const int n = x->names++;
    const bool is_sum = *op == '+';
    PUT("let v%d.%d = %s\n", n, x->lanes, from);
    for (int lanes = x->lanes; lanes > 1; lanes /= 2) {
        PUT("let v%d.%d = %s(shuffle(v%d.%d, v%d.%d, [", n, lanes / 2, is_sum ? "" : op, n, lanes, n, lanes);
        for (int i = 0; i < lanes / 2; i++) PUT("%s%d", i ? ", " : "", i);
        PUT("]) %s shuffle(v%d.%d, v%d.%d, [", is_sum ? "+" : ",", n, lanes, n, lanes);
        for (int i = lanes / 2; i < lanes; i++) PUT("%s%d", i > lanes / 2 ? ", " : "", i);
        PUT("]))\n");
    }
    PUT("let %s = v%d.1\n", to, n);
}

/* ---- The parameters ---- */

static void put_parameters(const writer *x) {
    PUT("kernel @index (\n");
    PUT("  q: %s[batches, tokens, %lld, %lld] strides [q_b, q_t, q_h, 1] in,\n", x->dtype, x->heads, x->dim);
    if (x->page)
        PUT("  k: %s[sequences, %lld, %lld] strides [k_b, k_t, 1] in,\n", x->dtype, x->page, x->dim);
    else
        PUT("  k: %s[sequences, keys, %lld] strides [k_b, k_t, 1] in,\n", x->dtype, x->dim);
    PUT("  w: %s[batches, tokens, %lld] strides [w_b, w_t, 1] in,\n", x->w_dtype, x->heads);
    if (has_scales(x)) {
        PUT("  q_scale: f32[batches, tokens, %lld] strides [q_scale_b, q_scale_t, 1] in,\n", x->heads);
        if (x->page)
            PUT("  k_scale: f32[sequences, %lld] strides [k_scale_b, k_scale_t] in,\n", x->page);
        else
            PUT("  k_scale: f32[sequences, keys] strides [k_scale_b, k_scale_t] in,\n");
    }
    if (x->page) PUT("  table: i32[batch, columns] strides [table_b, 1] in,\n");
    PUT("  work: i32[items, %d] in,\n", IDX_WORK_COLUMNS);
    PUT("  ids: i32[queries, %lld] out,\n", x->ids);
    if (x->scores) PUT("  scores: f32[queries, %lld] out,\n", x->ids);
    PUT("  batches: idx, tokens: idx, queries: idx, sequences: idx,%s\n",
        x->page ? " batch: idx, columns: idx," : " keys: idx,");
    PUT("  q_b: idx, q_t: idx, q_h: idx, k_b: idx, k_t: idx, w_b: idx, w_t: idx,\n");
    if (has_scales(x)) PUT("  q_scale_b: idx, q_scale_t: idx, k_scale_b: idx, k_scale_t: idx,\n");
    if (x->page) PUT("  table_b: idx,\n");
    PUT("  items: idx, chunks: idx, chunk_keys: idx, merged: idx, merged_rows: idx) {\n");
    PUT("assume batches >= 1\nassume tokens >= 1\nassume queries >= 1\nassume sequences >= 1\nassume chunks >= "
        "1\nassume chunk_keys >= 1\n");
    PUT("%s", x->page ? "assume batch >= 1\nassume columns >= 1\n" : "assume keys >= 1\n");
    PUT("alloc part_ranks: i32[merged_rows, chunks, %lld] shared\nalloc part_keys: i32[merged_rows, chunks, %lld] "
        "shared\n"
        "alloc part_fill: i32[merged_rows, chunks] shared\n",
        x->ids, x->ids);
}

/* What a task knows of its queries, and their lists. */
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
    PUT("alloc ranks%s: i32[%d, %lld] scratch\nalloc listed%s: i32[%d, %lld] scratch\n", x->phase, x->rows, x->capacity,
        x->phase, x->rows, x->capacity);
    PUT("alloc fill%s: i32[%d] scratch\nalloc least%s: i32[%d] scratch\n", x->phase, x->rows, x->phase, x->rows);
}

/* Of query r: its token, its row of the output, and the keys that it sees. */
static void put_row(const writer *x, const char *suffix) {
    PUT("let token%s in 0..tokens = first_token%s + r%s\n", suffix, x->phase, suffix);
    PUT("let row%s in 0..queries = (b%s * tokens) + token%s\n", suffix, x->phase, suffix);
    if (x->causal)
        PUT("let seen%s = max(seen_first%s + r%s, 0)\n", suffix, x->phase, suffix);
    else
        PUT("let seen%s = max(seen_first%s, 0)\n", suffix, x->phase);
}

/* Whether the choice of a query needs its scores. */
static void put_is_long(const writer *x, const char *suffix) {
    if (x->scores)
        PUT("seen%s > 0", suffix);
    else
        PUT("seen%s > %lld", suffix, x->ids);
}

/* ---- Rows of q and k, as units ---- */

/* Every second number of `raw`, from number `first` on. */
static void put_half(const writer *x, const char *raw, int first) {
    PUT("cast.f32(shuffle(%s, %s, [", raw, raw);
    for (int i = 0; i < x->lanes; i++) PUT("%s%d", i ? ", " : "", 2 * i + first);
    PUT("]))");
}

/* `to` = the units u to before u + lanes of the row that `access` begins with. Names begin with `name`. */
static void put_units(const writer *x, const char *access, const char *u, const char *name, const char *to) {
    const int n = x->lanes * x->pack;
    PUT("let %s = %s, %s * %d]:x%d", name, access, u, x->pack, n);
    if (x->dim % n) PUT(" ? (ramp.x%d(%s * %d, 1) < splat.x%d(%lld))", n, u, x->pack, n, x->dim);
    PUT("\n%s = ", to);
    if (x->pack == 2 && is_f8(x)) {
        PUT("bitcast.i32(pack2(");
        put_half(x, name, 0);
        PUT(", ");
        put_half(x, name, 1);
        PUT("))");
    } else {
        PUT("%s(%s)", x->pack > 1 ? "bitcast.i32" : cast(x->dtype), name);
    }
    /* a signed byte of k and 128, without a sign */
    if (is_i8(x) && *access == 'k') PUT(" ^ splat.x%d(-2139062144:i32)", x->lanes);
    PUT("\n");
}

/* Heads side by side: packed[r, unit, head]. Heads that fill up repeat the last one. */
static void put_pack_row(const writer *x) {
    const int lanes = x->lanes;
    PUT("for h in 0..%lld by %d {\nfor i in 0..%d {\nlet head = min(h + i, %lld)\n", x->all_heads, lanes, lanes,
        x->heads - 1);
    char to[48];
    snprintf(to, sizeof to, "turned[i, u]:x%d", lanes);
    PUT("for u in 0..%lld by %d {\n", x->padded, lanes);
    put_units(x, "q[b, token.p, head", "u", "of_q", to);
    PUT("}\n}\n");
    if (is_i8(x)) PUT("offset[] = splat.x%d(0:i32)\n", lanes);
    PUT("for u.1 in 0..%lld {\nlet column = turned[0, u.1]:x%d @0\npacked[r.p, u.1, h]:x%d = column\n", x->units, lanes,
        lanes);
    if (is_i8(x)) PUT("offset[] = dot4(bitcast.i8(splat.x%d(-2139062144:i32)), bitcast.i8(column), offset[])\n", lanes);
    PUT("}\n");
    if (is_i8(x)) PUT("offsets[r.p, h]:x%d = splat.x%d(0:i32) - offset[]\n", lanes, lanes);
    char mask[80] = "";
    if (x->heads % lanes || x->all_heads != x->heads)
        snprintf(mask, sizeof mask, " ? (ramp.x%d(h, 1) < splat.x%d(%lld))", lanes, lanes, x->heads);
    PUT("let weight = %s(w[b, token.p, h]:x%d%s)\n", cast(x->w_dtype), lanes, mask);
    if (has_scales(x))
        PUT("weights[r.p, h]:x%d = weight * q_scale[b, token.p, h]:x%d%s\n", lanes, lanes, mask);
    else
        PUT("weights[r.p, h]:x%d = weight\n", lanes);
    PUT("}\n");
}

/* The lists are empty, and the queries packed. */
static void put_begin(const writer *x) {
    PUT("for r.p in 0..count {\n");
    put_row(x, ".p");
    PUT("fill[r.p] = 0:i32\nleast[r.p] = -2147483648:i32\nif ");
    put_is_long(x, ".p");
    PUT(" {\n");
    put_pack_row(x);
    PUT("}\n}\n");
}

/* Where key `number` lies; names end with `suffix`. */
static void put_place(const writer *x, const char *number, const char *suffix) {
    if (x->page) {
        PUT("let column%s in 0..columns = %s / %lld\nlet page%s in 0..sequences = cast.idx(table[sequence, "
            "column%s])\n",
            suffix, number, x->page, suffix, suffix);
        PUT("let place%s in 0..%lld = %s %% %lld\n", suffix, x->page, number, x->page);
    } else {
        PUT("let place%s in 0..keys = first_key + %s\n", suffix, number);
    }
}

/* Keys that products take as they are are multiplied where they lie: a copy of a tile of f32, beside q, would not fit
 * into the first cache. */
static bool is_direct(const writer *x) { return is_f32(x->dtype) || (x->pack == 2 && !is_f8(x) && x->dim % 2 == 0); }

/* The keys of the register tile at g. */
static void put_direct(const writer *x) {
    char number[32], suffix[16];
    for (int i = 0; i < x->keys; i++) {
        snprintf(number, sizeof number, "number.%d", i);
        snprintf(suffix, sizeof suffix, ".%d", i);
        PUT("let %s = min((first + g) + %d, end - 1)\n", number, i);
        put_place(x, number, suffix);
    }
}

/* The tile's keys, in scratch. Past the end the last key is repeated. */
static void put_stage(const writer *x) {
    PUT("for j in 0..%d {\nlet number = min(first + j, end - 1)\n", TILE);
    put_place(x, "number", ".k");
    char to[48];
    snprintf(to, sizeof to, "key_units[j, u.k]:x%d", x->lanes);
    PUT("for u.k in 0..%lld by %d {\n", x->padded, x->lanes);
    put_units(x, x->page ? "k[page.k, place.k" : "k[sequence, place.k", "u.k", "of_k", to);
    PUT("}\n");
    if (has_scales(x)) PUT("key_scales[j] = k_scale[%s, place.k]\n", x->page ? "page.k" : "sequence");
    PUT("}\n");
}

/* Asks for the keys of the next tile that lie where those of the register tile at g do in this one. */
static void put_ahead(const writer *x) {
    const int line = 64 / (has_scales(x) ? 1 : is_f32(x->dtype) ? 4 : 2);
    PUT("if r == 0 {\nfor j.n in 0..%d {\nlet number.n = min((first + %d) + (g + j.n), end - 1)\n", x->keys, TILE);
    put_place(x, "number.n", ".n");
    PUT("for d.n in 0..%lld by %d {\nprefetch k[%s, place.n, d.n]\n}\n}\n}\n", x->dim, line,
        x->page ? "page.n" : "sequence");
}

/* ---- Products ---- */

/* A unit of key i, in all lanes. */
static void put_direct_key(const writer *x, int i) {
    char row[48];
    if (x->page)
        snprintf(row, sizeof row, "k[page.%d, place.%d", i, i);
    else
        snprintf(row, sizeof row, "k[sequence, place.%d", i);
    if (x->pack == 2)
        PUT("let key%d = splat.x%d(bitcast.i32(%s, d * 2]:x2))\n", i, x->lanes, row);
    else
        PUT("let key%d = splat.x%d(%s, d])\n", i, x->lanes, row);
}

/* sums[keys, vectors] of query r and the keys from g on, for the heads from h on. */
static void put_product(const writer *x) {
    char key[32], query[32], sum[32];
    for (int i = 0; i < x->keys; i++)
        for (int v = 0; v < x->vectors; v++)
            if (is_i8(x))
                PUT("sums[%d, %d] = offsets[r, h.k + %d]:x%d\n", i, v, v * x->lanes, x->lanes);
            else
                PUT("sums[%d, %d] = splat.x%d(0.0)\n", i, v, x->lanes);
    PUT("for d in 0..%lld {\n", x->units);
    for (int v = 0; v < x->vectors; v++) PUT("let query%d = packed[r, d, h.k + %d]:x%d\n", v, v * x->lanes, x->lanes);
    for (int i = 0; i < x->keys; i++) {
        if (!is_direct(x))
            PUT("let key%d = splat.x%d(key_units[g + %d, d])\n", i, x->lanes, i);
        else
            put_direct_key(x, i);
        for (int v = 0; v < x->vectors; v++) {
            snprintf(key, sizeof key, "key%d", i);
            snprintf(query, sizeof query, "query%d", v);
            snprintf(sum, sizeof sum, "sums[%d, %d]", i, v);
            PUT("%s = ", sum);
            if (is_i8(x))
                PUT("dot4(bitcast.i8(%s), bitcast.i8(%s), %s)", key, query, sum);
            else if (x->pack == 2)
                PUT("dot2(bitcast.bf16(%s), bitcast.bf16(%s), %s)", key, query, sum);
            else
                put_madd(x, key, query, sum);
            PUT("\n");
        }
    }
    PUT("}\n");
}

/* What the heads of a register tile add to the scores. */
static void put_weighted(const writer *x) {
    char weight[32], positive[32], score[32];
    for (int v = 0; v < x->vectors; v++) {
        PUT("let weight%d = weights[r, h.k + %d]:x%d\n", v, v * x->lanes, x->lanes);
        snprintf(weight, sizeof weight, "weight%d", v);
        for (int i = 0; i < x->keys; i++) {
            snprintf(positive, sizeof positive, "positive%d.%d", i, v);
            snprintf(score, sizeof score, "by_lane[%d]", i);
            if (is_i8(x))
                PUT("let %s = cast.f32(max(sums[%d, %d], splat.x%d(0:i32)))\n", positive, i, v, x->lanes);
            else if (x->all_heads != x->heads) /* heads that fill up must not add NaN */
                PUT("let %s = select(ramp.x%d(h.k + %d, 1) < splat.x%d(%lld), max(splat.x%d(0.0), sums[%d, %d]), "
                    "splat.x%d(0.0))\n",
                    positive, x->lanes, v * x->lanes, x->lanes, x->heads, x->lanes, i, v, x->lanes);
            else
                PUT("let %s = max(splat.x%d(0.0), sums[%d, %d])\n", positive, x->lanes, i, v);
            PUT("%s = ", score);
            put_madd(x, weight, positive, score);
            PUT("\n");
        }
    }
}

static void put_products(const writer *x) {
    PUT("for g in 0..%d by %d {\n", TILE, x->keys);
    put_ahead(x);
    if (is_direct(x)) put_direct(x);
    for (int i = 0; i < x->keys; i++) PUT("by_lane[%d] = splat.x%d(0.0)\n", i, x->lanes);
    PUT("for h.k in 0..%lld by %d {\n", x->all_heads, x->vectors * x->lanes);
    put_product(x);
    put_weighted(x);
    PUT("}\n");
    for (int i = 0; i < x->keys; i++) PUT("parts[g + %d, 0]:x%d = by_lane[%d]\n", i, x->lanes, i);
    PUT("}\n");
}

/* ---- The list of a query ---- */

/* The lanes of each of as many rows as there are lanes, added up: row j + l in lane l. */
static void put_row_sums(writer *x) {
    const int n = x->names++;
    char a[32], b[32];
    for (int i = 0; i < x->lanes; i++) PUT("let t%d.%d.%d = parts[j.s + %d, 0]:x%d\n", n, x->lanes, i, i, x->lanes);
    for (int block = x->lanes; block > 1; block /= 2)
        for (int i = 0; i < block / 2; i++) {
            snprintf(a, sizeof a, "t%d.%d.%d", n, block, 2 * i);
            snprintf(b, sizeof b, "t%d.%d.%d", n, block, 2 * i + 1);
            PUT("let t%d.%d.%d = ", n, block / 2, i);
            put_pick(x, a, b, x->lanes, block, 0);
            PUT(" + ");
            put_pick(x, a, b, x->lanes, block, 1);
            PUT("\n");
        }
    PUT("let score = t%d.1.0", n);
    if (has_scales(x)) PUT(" * key_scales[j.s]:x%d", x->lanes);
    PUT("\n");
}

/* The rank of a score: of -0 that of 0, of NaN the least. A key that the query does not see is below all. */
static void put_ranks(const writer *x) {
    const int lanes = x->lanes;
    PUT("let plain = score + splat.x%d(0.0)\nlet bits = bitcast.i32(plain)\n", lanes);
    PUT("let order = bits ^ ((bits >> splat.x%d(31:i32)) & splat.x%d(2147483647:i32))\n", lanes, lanes);
    PUT("let number_rank = select(plain == plain, order, splat.x%d(-2147483647:i32))\n", lanes);
    PUT("let rank = select(ramp.x%d(cast.i32(first + j.s), 1:i32) < splat.x%d(cast.i32(seen)), number_rank, "
        "splat.x%d(-2147483648:i32))\n",
        lanes, lanes, lanes);
}

/* Appends a key to list r if its rank is above the least. */
static void put_append(writer *x, const char *r, const char *rank, const char *key) {
    const int n = x->names++;
    const char *const p = x->phase;
    PUT("let at%d in 0..%lld = cast.idx(fill%s[%s])\nranks%s[%s, at%d] = %s\nlisted%s[%s, at%d] = %s\n", n, x->capacity,
        p, r, p, r, n, rank, p, r, n, key);
    PUT("fill%s[%s] = fill%s[%s] + cast.i32(%s > least%s[%s])\n", p, r, p, r, rank, p, r);
}

static void put_selection(writer *x) {
    const int lanes = x->lanes;
    PUT("for j.s in 0..%d by %d {\n", TILE, lanes);
    put_row_sums(x);
    put_ranks(x);
    put_reduced(x, "rank", "best", "max");
    PUT("if best > least[r] {\nnew[0]:x%d = rank\nfor i.s in 0..%d {\nlet rank.s = new[i.s]\n", lanes, lanes);
    put_append(x, "r", "rank.s", "cast.i32((first + j.s) + i.s)");
    PUT("}\n}\n}\n");
}

/* let to.n = how many ranks of list r there are for which `rank OP value`. The list ends with whole vectors. */
static void put_count(writer *x, int list, const char *r, const char *op, const char *value, const char *to) {
    const int n = x->names++, lanes = x->lanes;
    char from[24], sum[24];
    PUT("counts%d[] = splat.x%d(0:i32)\nfor c%d in 0..length%d by %d {\n", list, lanes, n, list, lanes);
    PUT("counts%d[] = counts%d[] + select(ranks%s[%s, c%d]:x%d %s splat.x%d(%s), splat.x%d(1:i32), "
        "splat.x%d(0:i32))\n}\n",
        list, list, x->phase, r, n, lanes, op, lanes, value, lanes, lanes);
    snprintf(from, sizeof from, "counts%d[]", list);
    snprintf(sum, sizeof sum, "%s%d", to, list);
    put_reduced(x, from, sum, "+");
}

/* Leaves the best of list r, which is longer, and sets the least rank that is of interest from now on. */
static void put_compact(writer *x, const char *r) {
    const int n = x->names++, lanes = x->lanes;
    const char *const p = x->phase;
    char nth[24], tried[24];
    snprintf(nth, sizeof nth, "nth%d[]", n);
    snprintf(tried, sizeof tried, "tried%d", n);
    PUT("alloc counts%d: i32x%d[] reg\nalloc nth%d: i32[] reg\nalloc ties%d: i32[] reg\nalloc kept%d: i32[] reg\n", n,
        lanes, n, n, n);
    PUT("let length%d in 0..%lld = cast.idx(fill%s[%s])\nranks%s[%s, length%d]:x%d = splat.x%d(-2147483648:i32)\n", n,
        x->capacity - lanes + 1, p, r, p, r, n, lanes, lanes);
    PUT("%s = -2147483648:i32\nfor bit%d in 0..32 {\nlet %s = %s + (1:i32 << cast.i32(31 - bit%d))\n", nth, n, tried,
        nth, n);
    put_count(x, n, r, ">=", tried, "above");
    PUT("%s = select(above%d >= %lld:i32, %s, %s)\n}\n", nth, n, x->ids, tried, nth);
    put_count(x, n, r, ">", nth, "better");
    PUT("least%s[%s] = %s\nties%d[] = %lld:i32 - better%d\nkept%d[] = 0:i32\n", p, r, nth, n, x->ids, n, n);
    PUT("for c%d in 0..length%d {\nlet rank%d = ranks%s[%s, c%d]\nlet key%d.c = listed%s[%s, c%d]\n", n, n, n, p, r, n,
        n, p, r, n);
    PUT("let tie%d = cast.i32(rank%d == %s) & cast.i32(ties%d[] > 0:i32)\nties%d[] = ties%d[] - tie%d\n", n, n, nth, n,
        n, n, n);
    PUT("let to%d in 0..%lld = cast.idx(kept%d[])\nranks%s[%s, to%d] = rank%d\nlisted%s[%s, to%d] = key%d.c\n", n,
        x->capacity, n, p, r, n, n, p, r, n, n);
    PUT("kept%d[] = kept%d[] + (cast.i32(rank%d > %s) | tie%d)\n}\nfill%s[%s] = kept%d[]\n", n, n, n, nth, n, p, r, n);
}

/* ---- The output ---- */

static void put_tail_mask(const writer *x, const char *i) {
    if (x->ids % x->lanes) PUT(" ? (ramp.x%d(%s, 1) < splat.x%d(%lld))", x->lanes, i, x->lanes, x->ids);
}

/* Row `row` of the ids (and scores), from list r; -1 fills it up. */
static void put_list(writer *x, const char *r, const char *row) {
    const int n = x->names++, lanes = x->lanes;
    char o[16];
    snprintf(o, sizeof o, "o%d", n);
    PUT("let length%d in 0..%lld = min(cast.idx(fill%s[%s]), %lld)\n", n, x->ids + 1, x->phase, r, x->ids);
    PUT("for %s in 0..%lld by %d {\nlet live%d = ramp.x%d(%s, 1) < splat.x%d(length%d)\n", o, x->ids, lanes, n, lanes,
        o, lanes, n);
    PUT("ids[%s, %s]:x%d", row, o, lanes);
    put_tail_mask(x, o);
    PUT(" = select(live%d, listed%s[%s, %s]:x%d ? (live%d), splat.x%d(-1:i32))\n", n, x->phase, r, o, lanes, n, lanes);
    if (x->scores) {
        PUT("let rank%d = ranks%s[%s, %s]:x%d ? (live%d)\n", n, x->phase, r, o, lanes, n);
        PUT("let bits%d = rank%d ^ ((rank%d >> splat.x%d(31:i32)) & splat.x%d(2147483647:i32))\n", n, n, n, lanes,
            lanes);
        PUT("scores[%s, %s]:x%d", row, o, lanes);
        put_tail_mask(x, o);
        PUT(" = select(live%d, bitcast.f32(bits%d), splat.x%d(-inf))\n", n, n, lanes);
    }
    PUT("}\n");
}

/* All keys that the query sees. */
static void put_all_seen(const writer *x, const char *row, const char *seen) {
    const int lanes = x->lanes;
    PUT("for a in 0..%lld by %d {\nids[%s, a]:x%d", x->ids, lanes, row, lanes);
    put_tail_mask(x, "a");
    PUT(" = select(ramp.x%d(a, 1) < splat.x%d(%s), ramp.x%d(cast.i32(a), 1:i32), splat.x%d(-1:i32))\n", lanes, lanes,
        seen, lanes, lanes);
    if (x->scores) {
        PUT("scores[%s, a]:x%d", row, lanes);
        put_tail_mask(x, "a");
        PUT(" = splat.x%d(-inf)\n", lanes);
    }
    PUT("}\n");
}

/* A chunk's list goes where the second phase finds it. */
static void put_part(const writer *x) {
    const int lanes = x->lanes;
    PUT("let place.e in 0..merged_rows = row.e\npart_fill[place.e, chunk] = fill[r.e]\n");
    PUT("let length.e in 0..%lld = min(cast.idx(fill[r.e]), %lld)\n", x->ids + 1, x->ids);
    PUT("for e in 0..length.e by %d {\nlet live.e = ramp.x%d(e, 1) < splat.x%d(length.e)\n", lanes, lanes, lanes);
    PUT("part_ranks[place.e, chunk, e]:x%d ? (live.e) = ranks[r.e, e]:x%d ? (live.e)\n", lanes, lanes);
    PUT("part_keys[place.e, chunk, e]:x%d ? (live.e) = listed[r.e, e]:x%d ? (live.e)\n}\n", lanes, lanes);
}

static void put_end(writer *x) {
    PUT("for r.e in 0..count {\n");
    put_row(x, ".e");
    PUT("if ");
    put_is_long(x, ".e");
    PUT(" {\nif chunks == 1 {\n");
    put_list(x, "r.e", "row.e");
    PUT("} else {\n");
    put_part(x);
    PUT("}\n} else {\nif chunk == 0 {\n");
    put_all_seen(x, "row.e", "seen.e");
    PUT("}\n}\n}\n");
}

/* ---- The phases ---- */

static void put_memory(const writer *x) {
    const int lanes = x->lanes;
    PUT("alloc turned: %s[%d, %lld] scratch\nalloc packed: %s[%d, %lld, %lld] scratch\n", unit_type(x), lanes,
        x->padded, unit_type(x), x->rows, x->units, x->all_heads);
    if (!is_direct(x)) PUT("alloc key_units: %s[%d, %lld] scratch\n", unit_type(x), TILE, x->padded);
    PUT("alloc weights: f32[%d, %lld] scratch\nalloc parts: f32[%d, %d] scratch\n", x->rows, x->all_heads, TILE, lanes);
    PUT("alloc new: i32[%d] scratch\nalloc sums: %sx%d[%d, %d] reg\nalloc by_lane: f32x%d[%d] reg\n", lanes,
        is_i8(x) ? "i32" : "f32", lanes, x->keys, x->vectors, lanes, x->keys);
    if (has_scales(x)) PUT("alloc key_scales: f32[%d] scratch\n", TILE);
    if (is_i8(x))
        PUT("alloc offset: i32x%d[] reg\nalloc offsets: i32[%d, %lld] scratch\n", lanes, x->rows, x->all_heads);
}

/* Keys of a chunk, tile by tile. */
static void put_tiles(writer *x) {
    PUT("let begin = chunk * chunk_keys\nlet end = min(begin + chunk_keys, %s)\n",
        x->causal ? "max(seen_first + (count - 1), 0)" : "max(seen_first, 0)");
    PUT("if ");
    if (x->scores)
        PUT("end > begin");
    else
        PUT("(end > begin) & (%s > %lld)", x->causal ? "seen_first + (count - 1)" : "seen_first", x->ids);
    PUT(" {\nfor first in begin..end by %d {\n", TILE);
    if (!is_direct(x)) put_stage(x);
    PUT("for r in 0..count {\n");
    put_row(x, "");
    PUT("if (seen > first) & (");
    put_is_long(x, "");
    PUT(") {\n");
    put_products(x);
    put_selection(x);
    /* after the last tile all that is too much goes */
    PUT("let room = select((first + %d) >= min(end, seen), %lld:i32, %lld:i32)\nif fill[r] > room {\n", TILE, x->ids,
        x->capacity - TILE - 2 * x->lanes);
    put_compact(x, "r");
    PUT("}\n}\n}\n}\n}\n");
}

/* The lists of chunks, in the order of their keys. */
static void put_merge(writer *x) {
    x->phase = ".m";
    PUT("parallel for merge in 0..merged {\nlet item.m in 0..items = merge\n");
    put_task(x);
    PUT("for r.m in 0..count.m {\n");
    put_row(x, ".m");
    PUT("if ");
    put_is_long(x, ".m");
    PUT(" {\nlet row.n in 0..merged_rows = row.m\nfill.m[r.m] = 0:i32\nleast.m[r.m] = -2147483648:i32\n");
    PUT("for c in 0..chunks {\nlet have in 0..%lld = cast.idx(part_fill[row.n, c])\n", x->ids + 1);
    PUT("for first.m in 0..have by %d {\nfor i.m in first.m..min(first.m + %d, have) {\n"
        "let rank.m = part_ranks[row.n, c, i.m]\n",
        TILE, TILE);
    put_append(x, "r.m", "rank.m", "part_keys[row.n, c, i.m]");
    PUT("}\nif fill.m[r.m] > %lld:i32 {\n", x->capacity - TILE - 2 * x->lanes);
    put_compact(x, "r.m");
    PUT("}\n}\n}\nif fill.m[r.m] > %lld:i32 {\n", x->ids);
    put_compact(x, "r.m");
    PUT("}\n");
    put_list(x, "r.m", "row.m");
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
    put_begin(x);
    put_tiles(x);
    put_end(x);
    PUT("}\n");
    put_merge(x);
    PUT("}\n");
    return 0;
}
