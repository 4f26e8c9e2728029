/* The list of a query: its best keys so far, and how it becomes the output. */
#include "index/writer.h"

#include <stdio.h>

static void put_pick(const writer *x, const char *a, const char *b, int lanes, int block, int half) {
    PUT("shuffle(%s, %s, [", a, b);
    for (int i = 0, count = 0; i < 2 * lanes; i++)
        if (i % block / (block / 2) == half) PUT("%s%d", count++ ? ", " : "", i);
    PUT("])");
}

/* let to = the lanes of the vector `from` reduced by sums ("+") or maxima ("max"). */
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

/* ---- The list of a query ---- */

/* Reduces the sums of as many rows as there are lanes; row j + l goes to lane l. */
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
    if (idx_has_scales(x)) PUT(" * key_scales[j.s]:x%d", x->lanes);
    PUT("\n");
}

/* The rank of a score: -0 has that of 0, NaN the least. Hidden keys rank below all others. */
static void put_ranks(const writer *x) {
    const int lanes = x->lanes;
    PUT("let plain = score + splat.x%d(0.0)\nlet bits = bitcast.i32(plain)\n", lanes);
    PUT("let order = bits ^ ((bits >> splat.x%d(31:i32)) & splat.x%d(2147483647:i32))\n", lanes, lanes);
    PUT("let number_rank = select(plain == plain, order, splat.x%d(-2147483647:i32))\n", lanes);
    PUT("let rank = select(ramp.x%d(cast.i32(first + j.s), 1:i32) < splat.x%d(cast.i32(seen)), number_rank, "
        "splat.x%d(-2147483648:i32))\n",
        lanes, lanes, lanes);
}

void idx_put_append(writer *x, const char *r, const char *rank, const char *key) {
    const int n = x->names++;
    const char *const p = x->phase;
    PUT("let at%d in 0..%lld = cast.idx(fill%s[%s])\nranks%s[%s, at%d] = %s\nlisted%s[%s, at%d] = %s\n", n, x->capacity,
        p, r, p, r, n, rank, p, r, n, key);
    PUT("fill%s[%s] = fill%s[%s] + cast.i32(%s > least%s[%s])\n", p, r, p, r, rank, p, r);
}

void idx_put_selection(writer *x) {
    const int lanes = x->lanes;
    PUT("for j.s in 0..%d by %d {\n", TILE, lanes);
    put_row_sums(x);
    put_ranks(x);
    put_reduced(x, "rank", "best", "max");
    PUT("if best > least[r] {\nnew[0]:x%d = rank\nfor i.s in 0..%d {\nlet rank.s = new[i.s]\n", lanes, lanes);
    idx_put_append(x, "r", "rank.s", "cast.i32((first + j.s) + i.s)");
    PUT("}\n}\n}\n");
}

/* let to.n = the number of ranks of list r with `rank OP value`. The list is padded to whole vectors. */
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

void idx_put_compact(writer *x, const char *r) {
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
    PUT("%s = select(above%d >= ", nth, n);
    idx_put_ids(x);
    PUT(", %s, %s)\n}\n", tried, nth);
    put_count(x, n, r, ">", nth, "better");
    PUT("least%s[%s] = %s\nties%d[] = ", p, r, nth, n);
    idx_put_ids(x);
    PUT(" - better%d\nkept%d[] = 0:i32\n", n, n);
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
    if (x->is_any || x->ids % x->lanes) PUT(" ? (ramp.x%d(%s, 1) < splat.x%d(%s))", x->lanes, i, x->lanes, x->num_ids);
}

void idx_put_list(writer *x, const char *r, const char *row) {
    const int n = x->names++, lanes = x->lanes;
    char o[16];
    snprintf(o, sizeof o, "o%d", n);
    PUT("let length%d in 0..(%s + 1) = min(cast.idx(fill%s[%s]), %s)\n", n, x->num_ids, x->phase, r, x->num_ids);
    PUT("for %s in 0..%s by %d {\nlet live%d = ramp.x%d(%s, 1) < splat.x%d(length%d)\n", o, x->num_ids, lanes, n, lanes,
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
    PUT("for a in 0..%s by %d {\nids[%s, a]:x%d", x->num_ids, lanes, row, lanes);
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

/* Stores a chunk's list for the second phase. */
static void put_part(const writer *x) {
    const int lanes = x->lanes;
    PUT("let place.e in 0..merged_rows = row.e\npart_fill[place.e, chunk] = fill[r.e]\n");
    PUT("let length.e in 0..(%s + 1) = min(cast.idx(fill[r.e]), %s)\n", x->num_ids, x->num_ids);
    PUT("for e in 0..length.e by %d {\nlet live.e = ramp.x%d(e, 1) < splat.x%d(length.e)\n", lanes, lanes, lanes);
    PUT("part_ranks[place.e, chunk, e]:x%d ? (live.e) = ranks[r.e, e]:x%d ? (live.e)\n", lanes, lanes);
    PUT("part_keys[place.e, chunk, e]:x%d ? (live.e) = listed[r.e, e]:x%d ? (live.e)\n}\n", lanes, lanes);
}

void idx_put_end(writer *x) {
    PUT("for r.e in 0..count {\n");
    idx_put_row(x, ".e");
    PUT("if ");
    idx_put_is_long(x, ".e");
    PUT(" {\nif chunks == 1 {\n");
    idx_put_list(x, "r.e", "row.e");
    PUT("} else {\n");
    put_part(x);
    PUT("}\n} else {\nif chunk == 0 {\n");
    put_all_seen(x, "row.e", "seen.e");
    PUT("}\n}\n}\n");
}
