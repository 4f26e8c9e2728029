/* The kernel of the estimate, as loop IR: softmax over sums of strided scores, and its sums over blocks.
 *
 *                squares of queries, in lanes ►
 *             g  ┌─────────┬─────────┐          A square of queries is one long row, its stride queries side by side,
 *             ▼  │ register tile     │          the last one first. A square of keys is such a row in order. Their
 *      squares   └─────────┴─────────┘          product is the sum of the antidiagonal.
 *      of keys
 *
 * A task computes some row blocks of a head, and reads the keys in tiles of whole key blocks. Running maximum and sum
 * of each square of queries are in lanes. For each key block it stores the sum, and the maximum that this sum is
 * relative to. After the last key, these become probabilities. */
#include "blocks/kernel.h"

#include "described/described.h"
#include "described/ir_text.h"
#include "problem/problem_fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const attune_choice blk_choices[BLK_NUM_CHOICES] = {
    {.name = "keys", .values = (const int32_t[]){4, 8}, .num_values = 2, .usual = 8}};

const int64_t blk_columns[BLK_NUM_KERNELS] = {64, 512, 4096, 32768};

/* ---- State of the writer ---- */

typedef struct writer {
    attune_ir_writer *w;
    long long heads, kv, dim, block, stride, columns;
    const char *dtype;
    int causal;
    double scale;
    int lanes, has_fma, has_dot2;
    int pack;                 /* elements of a row in a unit: 2 of bf16 */
    long long units, padded;  /* units of a row, and of a row in scratch */
    long long squares;        /* of a block */
    int keys, vectors;        /* of a register tile */
    long long tile, all_keys; /* squares of keys in a tile, and padded to whole register tiles */
    long long rows;           /* squares of queries in lanes */
    long long blocks, part;   /* row blocks of a task, and how many squares of one are in lanes together */
} writer;

#define PUT(...) attune_ir_print(x->w, __VA_ARGS__)

static bool read_problem(writer *x, const char *problem) {
    attune_blocks_desc d;
    uint32_t which;
    if (!at_described_read(&blk_described, problem, &d, &which)) return false;
    x->heads = d.num_heads, x->kv = d.num_kv_heads, x->dim = d.head_dim, x->block = d.block_size, x->stride = d.stride;
    x->columns = blk_columns[which], x->dtype = mha_dtype_name(d.dtype), x->causal = d.is_causal;
    x->scale = d.softmax_scale;
    return true;
}

static bool is_f32(const writer *x) { return !strcmp(x->dtype, "f32"); }

/* The efficiency of a register tile in percent: lanes that row blocks fill, and sums for each load. */
static long long worth_of(const writer *x, int vectors) {
    static const int of_loads[] = {0, 60, 93, 100};
    const long long rows = (long long)vectors * x->lanes, turns = (x->squares + rows - 1) / rows;
    const long long used = x->squares > rows ? x->squares : rows / x->squares * x->squares;
    return of_loads[vectors] * used / (turns * rows);
}

/* As many vectors as let the packed queries of a task fit into L2. The result's bits depend on this number, so it must
 * not depend on the number of keys in a tile, which schedules vary. */
static void choose_vectors(writer *x) {
    enum { MOST = 3, BYTES = 512 * 1024 };
    x->vectors = 1;
    for (int v = 2; v <= MOST; v++)
        if (v * x->lanes * 4 * x->units * x->stride <= BYTES && worth_of(x, v) > worth_of(x, x->vectors))
            x->vectors = v;
}

static void choose_sizes(writer *x, const attune_build_request *request) {
    const int most = at_registers_of(request->isa) == 32 ? request->schedule[0] : 4;
    x->has_fma = request->has_fma;
    x->has_dot2 = !strcmp(request->isa, "avx512_bf16") || !strcmp(request->isa, "amx");
    x->lanes = request->vector_bytes / 4;
    x->pack = x->has_dot2 && !strcmp(x->dtype, "bf16") ? 2 : 1;
    x->units = (x->dim + x->pack - 1) / x->pack;
    x->padded = (x->units + x->lanes - 1) / x->lanes * x->lanes;
    x->squares = x->block / x->stride;
    x->tile = (8 + x->squares - 1) / x->squares * x->squares;
    x->keys = most;
    while (x->tile % x->keys) x->keys--;
    if (2 * x->keys <= most) x->keys = most;
    x->all_keys = (x->tile + x->keys - 1) / x->keys * x->keys;
    choose_vectors(x);
    x->rows = (long long)x->vectors * x->lanes;
    x->part = x->squares < x->rows ? x->squares : x->rows;
    x->blocks = x->rows / x->part;
}

static const char *cast(const writer *x) { return is_f32(x) ? "" : "cast.f32"; }

static const char *unit_type(const writer *x) { return x->pack > 1 ? "i32" : "f32"; }

static const char *zero(const writer *x) { return x->pack > 1 ? "0:i32" : "0.0"; }

/* ---- The parameters ---- */

static void put_parameters(const writer *x) {
    PUT("kernel @blocks (\n");
    PUT("  q: %s[batch, %lld, queries, %lld] strides [q_b, q_h, q_t, 1] in,\n", x->dtype, x->heads, x->dim);
    PUT("  k: %s[batch, %lld, keys, %lld] strides [k_b, k_h, k_t, 1] in,\n", x->dtype, x->kv, x->dim);
    PUT("  shares: f32[batch, %lld, row_blocks, columns] %s,\n", x->heads, x->squares > x->rows ? "inout" : "out");
    PUT("  batch: idx, queries: idx, keys: idx, row_blocks: idx, columns: idx, rows: idx, groups: idx,\n");
    PUT("  q_b: idx, q_h: idx, q_t: idx, k_b: idx, k_h: idx, k_t: idx) {\n");
    PUT("assume batch >= 1\nassume queries >= 1\nassume keys >= 1\nassume row_blocks >= 1\nassume columns >= 1\n");
}

static void put_memory(const writer *x) {
    PUT("alloc packed: %s[%lld, %lld, %lld] scratch\nalloc turned: %s[%d, %lld] scratch\n", unit_type(x), x->stride,
        x->units, x->rows, unit_type(x), x->lanes, x->padded);
    PUT("alloc staged: %s[%d, %lld, %lld] scratch\nalloc scores: f32[%lld, %lld] scratch\n", unit_type(x), x->keys,
        x->stride, x->padded, x->all_keys, x->rows);
    PUT("alloc block_sums: f32[%lld, %lld] scratch\nalloc block_tops: f32[%lld, %lld] scratch\n", x->columns, x->rows,
        x->columns, x->rows);
    PUT("alloc row: f32[%lld] scratch\nalloc sums: f32x%d[%d, %d] reg\nalloc acc: f32[] reg\n", x->rows, x->lanes,
        x->keys, x->vectors);
    PUT("alloc tops: f32x%d[%d] reg\nalloc totals: f32x%d[%d] reg\nalloc best: f32x%d[%d] reg\nalloc more: f32x%d[%d] "
        "reg\n",
        x->lanes, x->vectors, x->lanes, x->vectors, x->lanes, x->vectors, x->lanes, x->vectors);
}

/* ---- Rows of q and k, as units ---- */

/* `to` = the units u … u + lanes - 1 of the row that begins with `access`. Names begin with `name`. */
static void put_units(const writer *x, const char *access, const char *u, const char *name, const char *to) {
    const int n = x->lanes * x->pack;
    PUT("let %s = %s, %s * %d]:x%d", name, access, u, x->pack, n);
    if (x->dim % n) PUT(" ? (ramp.x%d(%s * %d, 1) < splat.x%d(%lld))", n, u, x->pack, n, x->dim);
    PUT("\n%s = %s(%s)\n", to, x->pack > 1 ? "bitcast.i32" : cast(x), name);
}

/* Packs squares of queries side by side: packed[u, unit, square], the last query of a square first. */
static void put_pack(const writer *x) {
    char to[48];
    snprintf(to, sizeof to, "turned[i.p, d.p]:x%d", x->lanes);
    PUT("for v.p in 0..%lld by %d {\nfor u.p in 0..%lld {\nfor i.p in 0..%d {\n", x->rows, x->lanes, x->stride,
        x->lanes);
    PUT("let group.p = (begin + v.p) + i.p\nlet token.p = (group.p * %lld) + (%lld - u.p)\n", x->stride, x->stride - 1);
    PUT("if (group.p < end_row) & (token.p < queries) {\nlet token.q in 0..queries = token.p\n");
    PUT("for d.p in 0..%lld by %d {\n", x->padded, x->lanes);
    put_units(x, "q[b, h, token.q", "d.p", "of_q", to);
    PUT("}\n} else {\nfor d.z in 0..%lld by %d {\nturned[i.p, d.z]:x%d = splat.x%d(%s)\n}\n}\n}\n", x->padded, x->lanes,
        x->lanes, x->lanes, zero(x));
    PUT("for d.t in 0..%lld {\nlet column.t = turned[0, d.t]:x%d @0\npacked[u.p, d.t, v.p]:x%d = column.t\n}\n}\n}\n",
        x->units, x->lanes, x->lanes);
}

/* The keys of the register tile at g.s, in scratch, padded with zeros. */
static void put_stage(const writer *x) {
    char to[48];
    snprintf(to, sizeof to, "staged[i.k, u.k, d.k]:x%d", x->lanes);
    PUT("for i.k in 0..%d {\nfor u.k in 0..%lld {\nlet token.k = (((first + g.s) + i.k) * %lld) + u.k\n", x->keys,
        x->stride, x->stride);
    PUT("if token.k < keys {\nlet token.s in 0..keys = token.k\nfor d.k in 0..%lld by %d {\n", x->padded, x->lanes);
    put_units(x, "k[b, kv, token.s", "d.k", "of_k", to);
    PUT("}\n} else {\nfor d.e in 0..%lld by %d {\nstaged[i.k, u.k, d.e]:x%d = splat.x%d(%s)\n}\n}\n}\n}\n", x->padded,
        x->lanes, x->lanes, x->lanes, zero(x));
}

/* ---- Products ---- */

/* Unit d of key i, in all lanes. */
static void put_key(const writer *x, int i, bool is_direct, const char *s) {
    PUT("let key%s%d = splat.x%d(", s, i, x->lanes);
    if (!is_direct)
        PUT("staged[%d, u%s, d%s])\n", i, s, s);
    else if (x->pack == 2)
        PUT("bitcast.i32(k[b, kv, place%s%d, d%s * 2]:x2))\n", s, i, s);
    else
        PUT("k[b, kv, place%s%d, d%s])\n", s, i, s);
}

static void put_multiplied(const writer *x, int i, int v, const char *s) {
    PUT("sums[%d, %d] = ", i, v);
    if (x->pack == 2)
        PUT("dot2(bitcast.bf16(key%s%d), bitcast.bf16(query%s%d), sums[%d, %d])\n", s, i, s, v, i, v);
    else if (x->has_fma)
        PUT("fma(key%s%d, query%s%d, sums[%d, %d])\n", s, i, s, v, i, v);
    else
        PUT("(key%s%d * query%s%d) + sums[%d, %d]\n", s, i, s, v, i, v);
}

/* Scores of the register tile, scaled to base 2; -inf for keys that are hidden from a square. */
static void put_scores(const writer *x, const char *s) {
    const float scale = (float)(x->scale * 1.4426950408889634 / (double)x->stride);
    for (int i = 0; i < x->keys; i++) {
        PUT("let number%s%d = splat.x%d(cast.i32((first + g%s) + %d))\n", s, i, x->lanes, s, i);
        for (int v = 0; v < x->vectors; v++)
            PUT("scores[g%s + %d, %d]:x%d = select(number%s%d <= limit%d, sums[%d, %d] * splat.x%d(%a), "
                "splat.x%d(-inf))\n",
                s, i, v * x->lanes, x->lanes, s, i, v, i, v, x->lanes, (double)scale, x->lanes);
    }
}

/* Keys are read in place if products need no other form; the last ones, and other types, are copied to scratch. */
static void put_products(const writer *x, bool is_direct) {
    const char *const s = is_direct ? ".d" : ".s";
    PUT("for g%s in 0..%lld by %d {\n", s, x->all_keys, x->keys);
    if (!is_direct) put_stage(x);
    for (int i = 0; i < x->keys; i++)
        for (int v = 0; v < x->vectors; v++) PUT("sums[%d, %d] = splat.x%d(0.0)\n", i, v, x->lanes);
    PUT("for u%s in 0..%lld {\n", s, x->stride);
    for (int i = 0; is_direct && i < x->keys; i++)
        PUT("let place%s%d in 0..keys = (((first + g%s) + %d) * %lld) + u%s\n", s, i, s, i, x->stride, s);
    PUT("for d%s in 0..%lld {\n", s, x->units);
    for (int v = 0; v < x->vectors; v++)
        PUT("let query%s%d = packed[u%s, d%s, %d]:x%d\n", s, v, s, s, v * x->lanes, x->lanes);
    for (int i = 0; i < x->keys; i++) {
        put_key(x, i, is_direct, s);
        for (int v = 0; v < x->vectors; v++) put_multiplied(x, i, v, s);
    }
    PUT("}\n}\n");
    put_scores(x, s);
    PUT("}\n");
}

static bool may_be_direct(const writer *x) { return is_f32(x) || (x->pack == 2 && x->dim % 2 == 0); }

static void put_tile(const writer *x) {
    if (may_be_direct(x)) {
        PUT("if ((first + %lld) * %lld) <= keys {\n", x->all_keys, x->stride);
        put_products(x, true);
        PUT("} else {\n");
        put_products(x, false);
        PUT("}\n");
    } else {
        put_products(x, false);
    }
}

/* ---- The softmax ---- */

/* The sums of the tile's key blocks, and the maximum that each is relative to. */
static void put_fold(const writer *x) {
    const int lanes = x->lanes;
    PUT("for s.f in 0..%lld by %lld {\nif (first + s.f) < end {\n", x->tile, x->squares);
    PUT("let column.f in 0..%lld = (first + s.f) / %lld\n", x->columns, x->squares);
    for (int v = 0; v < x->vectors; v++) PUT("best[%d] = tops[%d]\nmore[%d] = splat.x%d(0.0)\n", v, v, v, lanes);
    PUT("for j.b in 0..%lld {\n", x->squares);
    for (int v = 0; v < x->vectors; v++)
        PUT("best[%d] = max(scores[s.f + j.b, %d]:x%d, best[%d])\n", v, v * lanes, lanes, v);
    PUT("}\nfor j.m in 0..%lld {\n", x->squares);
    for (int v = 0; v < x->vectors; v++)
        PUT("more[%d] = more[%d] + exp2(scores[s.f + j.m, %d]:x%d - best[%d])\n", v, v, v * lanes, lanes, v);
    PUT("}\n");
    for (int v = 0; v < x->vectors; v++) {
        PUT("block_sums[column.f, %d]:x%d = more[%d]\nblock_tops[column.f, %d]:x%d = best[%d]\n", v * lanes, lanes, v,
            v * lanes, lanes, v);
        PUT("totals[%d] = (totals[%d] * exp2(tops[%d] - best[%d])) + more[%d]\ntops[%d] = best[%d]\n", v, v, v, v, v, v,
            v);
    }
    PUT("}\n}\n");
}

/* The probabilities of a column of key blocks, and their means over row blocks. */
static void put_shares(const writer *x) {
    const int lanes = x->lanes;
    const bool has_turns = x->squares > x->rows;
    for (int v = 0; v < x->vectors; v++)
        PUT("let live%d = ramp.x%d(%d:i32, 1:i32) < splat.x%d(cast.i32(end_row - begin))\nlet inverse%d = "
            "select(totals[%d] == splat.x%d(0.0), splat.x%d(0.0), splat.x%d(1.0) / totals[%d])\n",
            v, lanes, v * lanes, lanes, v, v, lanes, lanes, lanes, v);
    PUT("for c in 0..columns {\nif (c * %lld) < end {\nlet column.c in 0..%lld = c\n", x->squares, x->columns);
    for (int v = 0; v < x->vectors; v++)
        PUT("row[%d]:x%d = select(live%d, (block_sums[column.c, %d]:x%d * exp2(block_tops[column.c, %d]:x%d - "
            "tops[%d])) * inverse%d, splat.x%d(0.0))\n",
            v * lanes, lanes, v, v * lanes, lanes, v * lanes, lanes, v, v, lanes);
    PUT("} else {\n");
    for (int v = 0; v < x->vectors; v++) PUT("row[%d]:x%d = splat.x%d(0.0)\n", v * lanes, lanes, lanes);
    PUT("}\nfor s.o in 0..%lld {\nlet number.o = (task * %lld) + s.o\nif number.o < row_blocks {\n", x->blocks,
        x->blocks);
    PUT("let row_block in 0..row_blocks = number.o\nacc[] = 0.0\n");
    PUT("for r in 0..%lld {\nacc[] = acc[] + row[(s.o * %lld) + r]\n}\n", x->part, x->part);
    PUT("let share = acc[] / cast.f32(min(%lld, rows - (number.o * %lld)))\n", x->squares, x->squares);
    if (has_turns)
        PUT("if turn == 0 {\nshares[b, h, row_block, c] = share\n} else {\nshares[b, h, row_block, c] = shares[b, h, "
            "row_block, c] + share\n}\n");
    else
        PUT("shares[b, h, row_block, c] = share\n");
    PUT("}\n}\n}\n");
}

/* ---- The phase ---- */

/* Row blocks with more squares than lanes take several iterations. */
static void put_turn(const writer *x) {
    PUT("let begin = ((task * %lld) * %lld) + turn\n", x->blocks, x->squares);
    PUT("let end_row = min(min(((task + 1) * %lld) * %lld, begin + %lld), rows)\n", x->blocks, x->squares, x->rows);
    PUT("let end = %s\n", x->causal ? "max(min((end_row - rows) + groups, groups), 0)" : "groups");
    PUT("if begin < end_row {\n");
    put_pack(x);
    for (int v = 0; v < x->vectors; v++) {
        PUT("let limit%d = ", v);
        if (x->causal)
            PUT("min(ramp.x%d(cast.i32((begin + (groups - rows)) + %d), 1:i32), splat.x%d(cast.i32(groups - 1)))\n",
                x->lanes, v * x->lanes, x->lanes);
        else
            PUT("splat.x%d(cast.i32(groups - 1))\n", x->lanes);
        PUT("tops[%d] = splat.x%d(-3e38)\ntotals[%d] = splat.x%d(0.0)\n", v, x->lanes, v, x->lanes);
    }
    PUT("for first in 0..end by %lld {\n", x->tile);
    put_tile(x);
    put_fold(x);
    PUT("}\n");
    put_shares(x);
    PUT("}\n");
}

int blk_build(void *user, const attune_build_request *request, attune_ir_writer *w) {
    writer all = {.w = w}, *const x = &all;
    (void)user;
    if (!read_problem(x, request->problem)) {
        PUT("%s is no problem of the estimate", request->problem);
        return 1;
    }
    choose_sizes(x, request);
    put_parameters(x);
    PUT("parallel for b in 0..batch, h in 0..%lld, task in 0..(row_blocks + %lld) / %lld {\nlet kv = h / %lld\n",
        x->heads, x->blocks - 1, x->blocks, x->heads / x->kv);
    put_memory(x);
    PUT("for turn in 0..%lld by %lld {\n", x->squares > x->rows ? x->squares : 1, x->rows);
    put_turn(x);
    PUT("}\n}\n}\n");
    return 0;
}
