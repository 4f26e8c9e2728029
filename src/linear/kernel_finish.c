/* The second phase of the kernel, if rows of out are normalised or multiplied by gates. A task computes a head of a
 * sequence. It reads rows of out as the first phase has rounded them, which are still in cache. */
#include "linear/writer.h"

void lin_put_lane_sum(const writer *x, const char *from, const char *to) {
    int lanes = x->lanes;
    PUT("let %s.%d = %s\n", to, lanes, from);
    for (; lanes > 1; lanes /= 2) {
        PUT("let %s.%d = shuffle(%s.%d, %s.%d, [", to, lanes / 2, to, lanes, to, lanes);
        for (int i = 0; i < lanes / 2; i++) PUT("%s%d", i ? ", " : "", i);
        PUT("]) + shuffle(%s.%d, %s.%d, [", to, lanes, to, lanes);
        for (int i = lanes / 2; i < lanes; i++) PUT("%s%d", i > lanes / 2 ? ", " : "", i);
        PUT("])\n");
    }
    PUT("let %s = %s.1\n", to, to);
}

static void put_live(const writer *x, const char *column, const char *live) {
    PUT("let %s = ramp.x%d(%s, 1) < splat.x%d(%lld)\n", live, x->lanes, column, x->lanes, x->dim_v);
}

static void put_root(const writer *x) {
    PUT("alloc squares: f32x%d[] reg\nsquares[] = splat.x%d(0.0)\n", x->lanes, x->lanes);
    PUT("for c.norm in 0..%lld by %d {\n", x->dim_v, x->lanes);
    put_live(x, "c.norm", "live.norm");
    PUT("let e.norm = %s(y[b.2, t.2, head.2, c.norm]:x%d ? (live.norm))\n", lin_cast(x->dtype), x->lanes);
    PUT("squares[] = (e.norm * e.norm) + squares[]\n}\n");
    lin_put_lane_sum(x, "squares[]", "sum.norm");
    PUT("let root = splat.x%d(1.0 / sqrt(sum.norm / %lld.0 + %.9g))\n", x->lanes, x->dim_v, x->out_norm);
}

void lin_put_finish(const writer *x) {
    const char *const cast = lin_cast(x->dtype);
    PUT("parallel for number.2 in 0..batch, head.2 in 0..kv_heads * %lld {\n", x->group);
    PUT("let first.2 in 0..tokens + 1 = cast.idx(parts[number.2, 0])\n"
        "let end.2 in 0..tokens + 1 = cast.idx(parts[number.2, 1])\nif first.2 < end.2 {\n");
    PUT("let b.2 in 0..batches = min(number.2, batches - 1)\nfor t.2 in first.2..end.2 {\n");
    if (x->out_norm > 0) put_root(x);
    PUT("for c.2 in 0..%lld by %d {\n", x->dim_v, x->lanes);
    put_live(x, "c.2", "live.2");
    PUT("let e.2 = %s(y[b.2, t.2, head.2, c.2]:x%d ? (live.2))\n", cast, x->lanes);
    if (x->out_norm > 0)
        PUT("let n.2 = e.2 * root * %s(norm[c.2]:x%d ? (live.2))\n", cast, x->lanes);
    else
        PUT("let n.2 = e.2\n");
    if (x->gate) {
        PUT("let gate.2 = %s(gate[b.2, t.2, head.2, c.2]:x%d ? (live.2))\n", cast, x->lanes);
        PUT("let open = splat.x%d(1.0) + exp2(gate.2 * splat.x%d(-0x1.715476p+0))\n", x->lanes, x->lanes);
        PUT(x->gate == ATTUNE_GATE_SILU ? "let f.2 = n.2 * gate.2 / open\n" : "let f.2 = n.2 / open\n");
    } else {
        PUT("let f.2 = n.2\n");
    }
    PUT("y[b.2, t.2, head.2, c.2]:x%d ? (live.2) = ", x->lanes);
    PUT(lin_is_f32(x->dtype) ? "f.2\n" : "cast.%s(f.2)\n", x->dtype);
    PUT("}\n}\n}\n}\n");
}
