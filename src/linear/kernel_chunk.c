/* Chunks of tokens, whose products with the state are matrix products.
 *
 * Within a chunk r_i, what token i adds to the state for its key, follows from the state before the chunk and from the
 * r_j before it. With d_i = the product of the decays up to token i, and d_ij = that of the decays after j up to i:
 *
 *     r_i = beta_i (v_i - S^T (d_i k_i) - sum over j < i of (k_i . d_ij k_j) r_j)      a triangular solve
 *     o_i = S^T (d_i q_i) + sum over j <= i of (q_i . d_ij k_j) r_j
 *     S   = d_last S + sum over j of (d_last,j k_j) r_j^T
 *
 * The products of S with rows of K and Q, and its update, are register tiles of some rows by all vectors of the task's
 * columns. (Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024, solve for the same r.)
 *
 * Decays are multiplied from token to token, never divided: those of a long way become 0, where exp(a - b) of two sums
 * might overflow. Where each key column has a decay of its own, the rows of K are multiplied as tokens pass. */
#include "linear/kernel.h"
#include "linear/writer.h"

#include <stdio.h>

static bool is_by_key(const writer *x) { return x->decay == ATTUNE_DECAY_KEY; }
static bool is_by_head(const writer *x) { return x->decay == ATTUNE_DECAY_HEAD; }

/* Rows of a register tile: enough sums for the latency of multiply-adds. */
static int tile_rows(const writer *x) { return x->vectors > 2 || !x->has_many_registers ? 4 : LIN_CHUNK; }

void lin_put_chunk_memory(const writer *x) {
    /* Rows that are read at once do not begin in the same bank. */
    const long long padded = (x->dim + x->lanes - 1) / x->lanes * x->lanes + x->lanes;
    PUT("alloc keys: f32[%d, %lld] scratch\nalloc queries: f32[%lld, %lld] scratch\n", LIN_CHUNK, padded,
        x->group * LIN_CHUNK, padded);
    PUT("alloc weight: f32[%lld, %d] scratch\nalloc right: f32[%d, %d] scratch\n", x->group * LIN_CHUNK, LIN_CHUNK,
        x->blocks * LIN_CHUNK, x->vectors * x->lanes);
    PUT("alloc outs: f32[%lld, %d] scratch\n", x->blocks * x->group * LIN_CHUNK, x->vectors * x->lanes);
    PUT("alloc dots: f32x%d[%lld] reg\nalloc tile: f32x%d[%d, %d] reg\n", x->lanes, x->group + 1, x->lanes,
        tile_rows(x), x->vectors);
    if (x->has_delta) PUT("alloc mix: f32[%d, %d] scratch\n", LIN_CHUNK, LIN_CHUNK);
    if (x->has_delta && x->beta) PUT("alloc strengths: f32[%d] scratch\n", LIN_CHUNK);
    if (is_by_head(x))
        PUT("alloc gone: f32[] reg\nalloc since: f32[%d] scratch\nalloc span: f32[%d] scratch\n", LIN_CHUNK, LIN_CHUNK);
    if (is_by_key(x)) PUT("alloc gone: f32[1, %lld] scratch\n", padded);
    if (is_by_key(x) && x->has_delta) PUT("alloc starts: f32[%d, %lld] scratch\n", LIN_CHUNK, padded);
}

/* ---- Rows of the chunk, and products of two of them ---- */

/* since: d_i; span: d_ij of each j. */
static void put_decays_of_head(const writer *x) {
    PUT("let a.c = exp2(%s(decay[b, t.c, head]) * 0x1.715476p+0)\ngone[] = gone[] * a.c\nsince[i.c] = gone[]\n",
        lin_cast(x->decay_dtype));
    PUT("for j.s in 0..i.c {\nspan[j.s] = span[j.s] * a.c\n}\nspan[i.c] = 1.0\n");
}

/* d_i by keys. Rows of Q are multiplied by it last. */
static void put_decays_of_keys(writer *x) {
    PUT("for d.c in 0..%lld by %d {\nlet gone.c = gone[0, d.c]:x%d * decays[0, d.c]:x%d\ngone[0, d.c]:x%d = gone.c\n",
        x->dim, x->lanes, x->lanes, x->lanes, x->lanes);
    if (x->has_delta) PUT("starts[i.c, d.c]:x%d = keys[i.c, d.c]:x%d * gone.c\n", x->lanes, x->lanes);
    for (long long g = 0; g < x->group; g++)
        PUT("queries[%lld + i.c, d.c]:x%d = queries[%lld + i.c, d.c]:x%d * gone.c\n", g * LIN_CHUNK, x->lanes,
            g * LIN_CHUNK, x->lanes);
    PUT("}\n");
}

/* The products of token i.c's rows with the key of token `j`, one before it or itself. */
static void put_pair(writer *x, const char *j, bool is_itself) {
    const int n = x->names++, first = x->has_delta && !is_itself ? 0 : 1, lanes = x->lanes;
    char from[32], sum[32], span[48] = "";
    for (int i = first; i <= x->group; i++) PUT("dots[%d] = splat.x%d(0.0)\n", i, lanes);
    PUT("for d%d in 0..%lld by %d {\n", n, x->dim, lanes);
    if (is_by_key(x) && !is_itself)
        PUT("let e%d = keys[%s, d%d]:x%d * decays[0, d%d]:x%d\nkeys[%s, d%d]:x%d = e%d\n", n, j, n, lanes, n, lanes, j,
            n, lanes, n);
    else
        PUT("let e%d = keys[%s, d%d]:x%d\n", n, j, n, lanes);
    for (int i = first; i <= x->group; i++) {
        char row[64];
        if (!i)
            snprintf(row, sizeof row, "keys[i.c, d%d]:x%d", n, lanes);
        else
            snprintf(row, sizeof row, "queries[%d + i.c, d%d]:x%d", (i - 1) * LIN_CHUNK, n, lanes);
        snprintf(from, sizeof from, "e%d", n);
        snprintf(sum, sizeof sum, "dots[%d]", i);
        PUT("%s = ", sum);
        at_put_madd(x->w, x->has_fma, row, from, sum);
        PUT("\n");
    }
    PUT("}\n");
    if (is_by_head(x) && !is_itself) snprintf(span, sizeof span, " * span[%s]", j);
    for (int i = first; i <= x->group; i++) {
        snprintf(from, sizeof from, "dots[%d]", i);
        snprintf(sum, sizeof sum, "dot%d.%d", n, i);
        lin_put_lane_sum(x, from, sum);
        if (i)
            PUT("weight[%d + i.c, %s] = %s%s\n", (i - 1) * LIN_CHUNK, j, sum, span);
        else
            PUT("mix[i.c, %s] = neg(%s)%s\n", j, sum, span);
    }
}

/* Copies rows of K, Q and V. Nothing waits for another row: the pages of rows that lie far apart are looked up
 * together. */
static void put_chunk_rows(writer *x) {
    char row[64], to[48];
    PUT("for i.r in 0..%d {\nlet t.r = t0 + i.r\n", LIN_CHUNK);
    lin_put_row(x, "k[b, t.r, k_head", "keys[i.r", NULL, NULL, NULL);
    for (long long g = 0; g < x->group; g++) {
        snprintf(row, sizeof row, "q[b, t.r, q_head + %lld", g);
        snprintf(to, sizeof to, "queries[%lld + i.r", g * LIN_CHUNK);
        lin_put_row(x, row, to, "scale", NULL, NULL);
    }
    lin_open_columns(x);
    for (int v = 0; v < x->vectors; v++)
        PUT("right[block%d * %d + i.r, %d]:x%d = %s(v[b, t.r, head, %s]:x%d%s)\n", x->place, LIN_CHUNK, v * x->lanes,
            x->lanes, lin_cast(x->dtype), lin_column(x, v), x->lanes, lin_live(x, v));
    lin_close_columns(x);
    PUT("}\n");
}

/* Rows of out are stored together, for the same reason. */
static void put_stores(writer *x) {
    const bool is_f32 = lin_is_f32(x->dtype);
    PUT("for i.y in 0..%d {\nfor g.y in 0..%lld {\n", LIN_CHUNK, x->group);
    lin_open_columns(x);
    for (int v = 0; v < x->vectors; v++)
        PUT("y[b, t0 + i.y, out_head + g.y, %s]:x%d%s = %s%s(outs[block%d * %lld + g.y * %d + i.y, %d]:x%d)\n",
            lin_column(x, v), x->lanes, lin_live(x, v), is_f32 ? "" : "cast.", is_f32 ? "" : x->dtype, x->place,
            x->group * LIN_CHUNK, LIN_CHUNK, v * x->lanes, x->lanes);
    lin_close_columns(x);
    PUT("}\n}\n");
}

static void put_chunk_pairs(writer *x) {
    if (is_by_head(x)) PUT("gone[] = 1.0\n");
    if (is_by_key(x))
        PUT("for d.one in 0..%lld by %d {\ngone[0, d.one]:x%d = splat.x%d(1.0)\n}\n", x->dim, x->lanes, x->lanes,
            x->lanes);
    PUT("for i.c in 0..%d {\nlet t.c = t0 + i.c\n", LIN_CHUNK);
    if (x->has_delta && x->beta) PUT("strengths[i.c] = %s(beta[b, t.c, head])\n", lin_cast(x->beta_dtype));
    if (is_by_head(x)) put_decays_of_head(x);
    if (is_by_key(x)) lin_put_decays(x, "decay[b, t.c, head", "decays[0");
    PUT("for j.p in 0..i.c {\n");
    put_pair(x, "j.p", false);
    PUT("}\n");
    put_pair(x, "i.c", true);
    if (is_by_key(x)) put_decays_of_keys(x);
    PUT("}\n");
}

/* ---- Register tiles ---- */

/* tile = so many rows, from an access without its last index, times the state. */
static void put_product(writer *x, const char *rows, int first, int count) {
    const int n = x->names++;
    char factor[32], state[32], sum[32];
    for (int i = 0; i < count; i++)
        for (int v = 0; v < x->vectors; v++) PUT("tile[%d, %d] = splat.x%d(0.0)\n", i, v, x->lanes);
    PUT("for d%d in 0..%lld {\n", n, x->dim);
    for (int v = 0; v < x->vectors; v++)
        PUT("let s%d.%d = s[base%d + d%d, %d]:x%d\n", n, v, x->place, n, v * x->lanes, x->lanes);
    for (int i = 0; i < count; i++) {
        PUT("let w%d.%d = splat.x%d(%s + %d, d%d])\n", n, i, x->lanes, rows, first + i, n);
        for (int v = 0; v < x->vectors; v++) {
            snprintf(factor, sizeof factor, "w%d.%d", n, i);
            snprintf(state, sizeof state, "s%d.%d", n, v);
            snprintf(sum, sizeof sum, "tile[%d, %d]", i, v);
            PUT("%s = ", sum);
            at_put_madd(x->w, x->has_fma, factor, state, sum);
            PUT("\n");
        }
    }
    PUT("}\n");
}

/* Adds factor, a scalar, times `right`, a vector without its number, to a row of the tile. */
static void put_row_madd(writer *x, int i, const char *factor, const char *right) {
    const int n = x->names++;
    char name[32], vector[64], sum[32];
    PUT("let f.%d = splat.x%d(%s)\n", n, x->lanes, factor);
    for (int v = 0; v < x->vectors; v++) {
        snprintf(name, sizeof name, "f.%d", n);
        snprintf(vector, sizeof vector, "%s%d", right, v);
        snprintf(sum, sizeof sum, "tile[%d, %d]", i, v);
        PUT("%s = ", sum);
        at_put_madd(x->w, x->has_fma, name, vector, sum);
        PUT("\n");
    }
}

/* let name0, name1 … = the vectors of row `row` of the right sides. */
static void put_rights(const writer *x, const char *name, const char *row) {
    for (int v = 0; v < x->vectors; v++)
        PUT("let %s%d = right[block%d * %d + %s, %d]:x%d\n", name, v, x->place, LIN_CHUNK, row, v * x->lanes, x->lanes);
}

/* Adds the right sides of the tokens before `first`, with factors at `rows` (an access without its last index). */
static void put_earlier(writer *x, const char *rows, int first, int count) {
    if (!first) return;
    const int n = x->names++;
    char j[32], name[32], factor[96];
    snprintf(j, sizeof j, "j%d", n);
    snprintf(name, sizeof name, "r%d.", n);
    PUT("for %s in 0..%d {\n", j, first);
    put_rights(x, name, j);
    for (int i = 0; i < count; i++) {
        snprintf(factor, sizeof factor, "%s + %d, %s]", rows, first + i, j);
        put_row_madd(x, i, factor, name);
    }
    PUT("}\n");
}

/* The right sides of some tokens: the solve. */
static void put_right_sides(writer *x, int first, int count) {
    char factor[64], name[32];
    if (x->has_delta) put_product(x, is_by_key(x) ? "starts[0" : "keys[0", first, count);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < x->vectors; v++) {
            PUT("let value%d.%d = right[block%d * %d + %d, %d]:x%d\n", first + i, v, x->place, LIN_CHUNK, first + i,
                v * x->lanes, x->lanes);
            if (!x->has_delta)
                PUT("tile[%d, %d] = value%d.%d\n", i, v, first + i, v);
            else if (is_by_head(x))
                PUT("tile[%d, %d] = value%d.%d - splat.x%d(since[%d]) * tile[%d, %d]\n", i, v, first + i, v, x->lanes,
                    first + i, i, v);
            else
                PUT("tile[%d, %d] = value%d.%d - tile[%d, %d]\n", i, v, first + i, v, i, v);
        }
    if (x->has_delta) put_earlier(x, "mix[0", first, count);
    for (int i = 0; i < count; i++) {
        for (int j = 0; x->has_delta && j < i; j++) {
            snprintf(factor, sizeof factor, "mix[%d, %d]", first + i, first + j);
            snprintf(name, sizeof name, "right%d.", first + j);
            put_row_madd(x, i, factor, name);
        }
        for (int v = 0; v < x->vectors; v++) {
            if (x->has_delta && x->beta)
                PUT("let right%d.%d = splat.x%d(strengths[%d]) * tile[%d, %d]\n", first + i, v, x->lanes, first + i, i,
                    v);
            else
                PUT("let right%d.%d = tile[%d, %d]\n", first + i, v, i, v);
            PUT("right[block%d * %d + %d, %d]:x%d = right%d.%d\n", x->place, LIN_CHUNK, first + i, v * x->lanes,
                x->lanes, first + i, v);
        }
    }
}

/* Rows of out, of some tokens and the head g.c of those that share the state. */
static void put_chunk_outputs(writer *x, int first, int count) {
    char factor[64], name[32], row[16];
    put_product(x, "queries[g.c * 8", first, count);
    for (int i = 0; i < count && is_by_head(x); i++)
        for (int v = 0; v < x->vectors; v++)
            PUT("tile[%d, %d] = splat.x%d(since[%d]) * tile[%d, %d]\n", i, v, x->lanes, first + i, i, v);
    put_earlier(x, "weight[g.c * 8", first, count);
    for (int j = 0; j < count; j++) {
        snprintf(name, sizeof name, "last%d.", first + j);
        snprintf(row, sizeof row, "%d", first + j);
        put_rights(x, name, row);
        for (int i = j; i < count; i++) {
            snprintf(factor, sizeof factor, "weight[g.c * 8 + %d, %d]", first + i, first + j);
            put_row_madd(x, i, factor, name);
        }
    }
    for (int i = 0; i < count; i++)
        for (int v = 0; v < x->vectors; v++)
            PUT("outs[block%d * %lld + g.c * %d + %d, %d]:x%d = tile[%d, %d]\n", x->place, x->group * LIN_CHUNK,
                LIN_CHUNK, first + i, v * x->lanes, x->lanes, i, v);
}

/* The new state, of so many rows from `row` on. */
static void put_state_tile(writer *x, const char *row, int count) {
    const int n = x->names++;
    char j[32], name[32], factor[96];
    for (int i = 0; i < count; i++)
        for (int v = 0; v < x->vectors; v++) {
            PUT("tile[%d, %d] = s[base%d + %s + %d, %d]:x%d", i, v, x->place, row, i, v * x->lanes, x->lanes);
            if (is_by_head(x)) PUT(" * splat.x%d(since[%d])", x->lanes, LIN_CHUNK - 1);
            if (is_by_key(x)) PUT(" * splat.x%d(gone[0, %s + %d])", x->lanes, row, i);
            PUT("\n");
        }
    snprintf(j, sizeof j, "j%d", n);
    snprintf(name, sizeof name, "r%d.", n);
    PUT("for %s in 0..%d {\n", j, LIN_CHUNK);
    put_rights(x, name, j);
    for (int i = 0; i < count; i++) {
        snprintf(factor, sizeof factor, "keys[%s, %s + %d]", j, row, i);
        put_row_madd(x, i, factor, name);
    }
    PUT("}\n");
    for (int i = 0; i < count; i++)
        for (int v = 0; v < x->vectors; v++)
            PUT("s[base%d + %s + %d, %d]:x%d = tile[%d, %d]\n", x->place, row, i, v * x->lanes, x->lanes, i, v);
}

static void put_chunk_state(writer *x) {
    const int rows = tile_rows(x), left = (int)(x->dim % rows);
    char row[32];
    if (is_by_head(x)) {
        PUT("for j.span in 0..%d {\nlet span.j = splat.x%d(span[j.span])\n", LIN_CHUNK, x->lanes);
        for (int v = 0; v < x->vectors; v++)
            PUT("right[block%d * %d + j.span, %d]:x%d = right[block%d * %d + j.span, %d]:x%d * span.j\n", x->place,
                LIN_CHUNK, v * x->lanes, x->lanes, x->place, LIN_CHUNK, v * x->lanes, x->lanes);
        PUT("}\n");
    }
    if (x->dim >= rows) {
        PUT("for row.c in 0..%lld by %d {\n", x->dim - left, rows);
        put_state_tile(x, "row.c", rows);
        PUT("}\n");
    }
    snprintf(row, sizeof row, "%lld", x->dim - left);
    if (left) put_state_tile(x, row, left);
}

/* Prefetches a part of the next chunk's rows of a tensor: each block its share of the lines, so that the reads are
 * spread over the chunk. */
static void put_prefetch(writer *x, const char *tensor, const char *head, long long columns) {
    enum { LINE = 64 };
    const int n = x->names++, line = LINE / (lin_is_f32(x->dtype) ? 4 : 2);
    const long long lines = (columns + line - 1) / line, share = (lines + x->blocks - 1) / x->blocks;
    PUT("for i_%d in 0..%d {\nfor l%d in 0..%lld {\nprefetch.far %s[b, t0 + i_%d + %d, %s, (block%d * %lld + l%d) * %d]"
        "\n}\n}\n",
        n, LIN_CHUNK, n, share, tensor, n, LIN_CHUNK, head, x->place, share, n, line);
}

void lin_put_chunks(writer *x) {
    const int rows = tile_rows(x);
    PUT("for chunk in 0..(end - first) / %d {\nlet t0 in 0..tokens - %d = first + chunk * %d\n", LIN_CHUNK,
        LIN_CHUNK - 1, LIN_CHUNK);
    put_chunk_rows(x);
    put_chunk_pairs(x);
    lin_open_columns(x);
    put_prefetch(x, "k", "k_head", x->dim);
    for (int i = 0; i < LIN_CHUNK; i += rows) put_right_sides(x, i, rows);
    PUT("for g.c in 0..%lld {\n", x->group);
    put_prefetch(x, "q", "q_head + g.c", x->dim);
    put_prefetch(x, "y", "out_head + g.c", x->dim_v);
    for (int i = 0; i < LIN_CHUNK; i += rows) put_chunk_outputs(x, i, rows);
    PUT("}\n");
    put_prefetch(x, "v", "head", x->dim_v);
    put_chunk_state(x);
    lin_close_columns(x);
    put_stores(x);
    PUT("}\n");
}
