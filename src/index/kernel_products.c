/* Rows of q and k in the units of a product (f32, pairs of bf16, fours of int8), and the products of a register tile.
 */
#include "index/writer.h"

#include <stdio.h>

/* ---- Rows of q and k, as units ---- */

/* Every second element of `raw`, from element `first` on. */
static void put_half(const writer *x, const char *raw, int first) {
    PUT("cast.f32(shuffle(%s, %s, [", raw, raw);
    for (int i = 0; i < x->lanes; i++) PUT("%s%d", i ? ", " : "", 2 * i + first);
    PUT("]))");
}

/* `to` = the units u … u + lanes - 1 of the row that begins with `access`. Names begin with `name`. */
static void put_units(const writer *x, const char *access, const char *u, const char *name, const char *to) {
    const int n = x->lanes * x->pack;
    PUT("let %s = %s, %s * %d]:x%d", name, access, u, x->pack, n);
    if (x->dim % n) PUT(" ? (ramp.x%d(%s * %d, 1) < splat.x%d(%lld))", n, u, x->pack, n, x->dim);
    PUT("\n%s = ", to);
    if (x->pack == 2 && idx_is_f8(x)) {
        PUT("bitcast.i32(pack2(");
        put_half(x, name, 0);
        PUT(", ");
        put_half(x, name, 1);
        PUT("))");
    } else {
        PUT("%s(%s)", x->pack > 1 ? "bitcast.i32" : idx_cast(x->dtype), name);
    }
    /* a byte of k + 128, unsigned */
    if (idx_is_i8(x) && *access == 'k') PUT(" ^ splat.x%d(-2139062144:i32)", x->lanes);
    PUT("\n");
}

/* Packs heads side by side: packed[r, unit, head]. Padding repeats the last head. */
static void put_pack_row(const writer *x) {
    const int lanes = x->lanes;
    PUT("for h in 0..%lld by %d {\nfor i in 0..%d {\nlet head = min(h + i, %s - 1)\n", x->all_heads, lanes, lanes,
        x->num_heads);
    char to[48];
    snprintf(to, sizeof to, "turned[i, u]:x%d", lanes);
    PUT("for u in 0..%lld by %d {\n", x->padded, lanes);
    put_units(x, "q[b, token.p, head", "u", "of_q", to);
    PUT("}\n}\n");
    if (idx_is_i8(x)) PUT("offset[] = splat.x%d(0:i32)\n", lanes);
    PUT("for u.1 in 0..%lld {\nlet column = turned[0, u.1]:x%d @0\npacked[r.p, u.1, h]:x%d = column\n", x->units, lanes,
        lanes);
    if (idx_is_i8(x))
        PUT("offset[] = dot4(bitcast.i8(splat.x%d(-2139062144:i32)), bitcast.i8(column), offset[])\n", lanes);
    PUT("}\n");
    if (idx_is_i8(x)) PUT("offsets[r.p, h]:x%d = splat.x%d(0:i32) - offset[]\n", lanes, lanes);
    char mask[80] = "";
    if (idx_pads_heads(x))
        snprintf(mask, sizeof mask, " ? (ramp.x%d(h, 1) < splat.x%d(%s))", lanes, lanes, x->num_heads);
    PUT("let weight = %s(w[b, token.p, h]:x%d%s)\n", idx_cast(x->w_dtype), lanes, mask);
    if (idx_has_scales(x))
        PUT("weights[r.p, h]:x%d = weight * q_scale[b, token.p, h]:x%d%s\n", lanes, lanes, mask);
    else
        PUT("weights[r.p, h]:x%d = weight\n", lanes);
    PUT("}\n");
}

void idx_put_begin(const writer *x) {
    PUT("for r.p in 0..count {\n");
    idx_put_row(x, ".p");
    PUT("fill[r.p] = 0:i32\nleast[r.p] = -2147483648:i32\nif ");
    idx_put_is_long(x, ".p");
    PUT(" {\n");
    put_pack_row(x);
    PUT("}\n}\n");
}

/* The place of key `number`; names end with `suffix`. */
static void put_place(const writer *x, const char *number, const char *suffix) {
    if (x->page) {
        char of_cache[48]; /* K without pages may have sequences before this one */
        snprintf(of_cache, sizeof of_cache, x->is_any ? "(first_key + %s)" : "%s", number);
        PUT("let column%s in 0..columns = %s / %s\nlet page%s in 0..sequences = cast.idx(table[sequence, "
            "column%s])\n",
            suffix, of_cache, x->page_size, suffix, suffix);
        PUT("let place%s in 0..%s = %s %% %s\n", suffix, x->page_size, of_cache, x->page_size);
    } else {
        PUT("let place%s in 0..keys = first_key + %s\n", suffix, number);
    }
}

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

void idx_put_stage(const writer *x) {
    PUT("for j in 0..%d {\nlet number = min(first + j, end - 1)\n", TILE);
    put_place(x, "number", ".k");
    char to[48];
    snprintf(to, sizeof to, "key_units[j, u.k]:x%d", x->lanes);
    PUT("for u.k in 0..%lld by %d {\n", x->padded, x->lanes);
    put_units(x, x->page ? "k[page.k, place.k" : "k[sequence, place.k", "u.k", "of_k", to);
    PUT("}\n");
    if (idx_has_scales(x)) PUT("key_scales[j] = k_scale[%s, place.k]\n", x->page ? "page.k" : "sequence");
    PUT("}\n");
}

/* Prefetches the keys of the next tile that correspond to those of the register tile at g. */
static void put_ahead(const writer *x) {
    const int line = 64 / (idx_has_scales(x) ? 1 : idx_is_f32(x->dtype) ? 4 : 2);
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
            if (idx_is_i8(x))
                PUT("sums[%d, %d] = offsets[r, h.k + %d]:x%d\n", i, v, v * x->lanes, x->lanes);
            else
                PUT("sums[%d, %d] = splat.x%d(0.0)\n", i, v, x->lanes);
    PUT("for d in 0..%lld {\n", x->units);
    for (int v = 0; v < x->vectors; v++) PUT("let query%d = packed[r, d, h.k + %d]:x%d\n", v, v * x->lanes, x->lanes);
    for (int i = 0; i < x->keys; i++) {
        if (!idx_is_direct(x))
            PUT("let key%d = splat.x%d(key_units[g + %d, d])\n", i, x->lanes, i);
        else
            put_direct_key(x, i);
        for (int v = 0; v < x->vectors; v++) {
            snprintf(key, sizeof key, "key%d", i);
            snprintf(query, sizeof query, "query%d", v);
            snprintf(sum, sizeof sum, "sums[%d, %d]", i, v);
            PUT("%s = ", sum);
            if (idx_is_i8(x))
                PUT("dot4(bitcast.i8(%s), bitcast.i8(%s), %s)", key, query, sum);
            else if (x->pack == 2)
                PUT("dot2(bitcast.bf16(%s), bitcast.bf16(%s), %s)", key, query, sum);
            else
                at_put_madd(x->w, x->has_fma, key, query, sum);
            PUT("\n");
        }
    }
    PUT("}\n");
}

/* Adds the heads of a register tile to the scores. */
static void put_weighted(const writer *x) {
    char weight[32], positive[32], score[32];
    for (int v = 0; v < x->vectors; v++) {
        PUT("let weight%d = weights[r, h.k + %d]:x%d\n", v, v * x->lanes, x->lanes);
        snprintf(weight, sizeof weight, "weight%d", v);
        for (int i = 0; i < x->keys; i++) {
            snprintf(positive, sizeof positive, "positive%d.%d", i, v);
            snprintf(score, sizeof score, "by_lane[%d]", i);
            if (idx_is_i8(x))
                PUT("let %s = cast.f32(max(sums[%d, %d], splat.x%d(0:i32)))\n", positive, i, v, x->lanes);
            else if (idx_pads_heads(x)) /* padding must not add NaN */
                PUT("let %s = select(ramp.x%d(h.k + %d, 1) < splat.x%d(%s), max(splat.x%d(0.0), sums[%d, %d]), "
                    "splat.x%d(0.0))\n",
                    positive, x->lanes, v * x->lanes, x->lanes, x->num_heads, x->lanes, i, v, x->lanes);
            else
                PUT("let %s = max(splat.x%d(0.0), sums[%d, %d])\n", positive, x->lanes, i, v);
            PUT("%s = ", score);
            at_put_madd(x->w, x->has_fma, weight, positive, score);
            PUT("\n");
        }
    }
}

void idx_put_products(const writer *x) {
    PUT("for g in 0..%d by %d {\n", TILE, x->keys);
    put_ahead(x);
    if (idx_is_direct(x)) put_direct(x);
    for (int i = 0; i < x->keys; i++) PUT("by_lane[%d] = splat.x%d(0.0)\n", i, x->lanes);
    const int step = x->vectors * x->lanes;
    if (x->is_any)
        PUT("for t.k in 0..((heads + %d) / %d) {\nlet h.k in 0..%lld = t.k * %d\n", step - 1, step,
            x->all_heads - step + 1, step);
    else
        PUT("for h.k in 0..%lld by %d {\n", x->all_heads, step);
    put_product(x);
    put_weighted(x);
    PUT("}\n");
    for (int i = 0; i < x->keys; i++) PUT("parts[g + %d, 0]:x%d = by_lane[%d]\n", i, x->lanes, i);
    PUT("}\n");
}
