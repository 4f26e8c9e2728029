/* Parts that the kernels of linear attention have in common: masks of columns, and rows of Q and K in scratch, as f32.
 */
#include "linear/kernel.h"
#include "linear/writer.h"

#include <stdio.h>

void lin_open_columns(writer *x) {
    const int n = ++x->place, width = x->vectors * x->lanes;
    if (x->which == LIN_CHUNKS)
        PUT("for block%d in 0..%d {\nlet base%d = block%d * %lld\nlet column%d = (part * %d + block%d) * %d\n", n,
            x->blocks, n, n, x->dim, n, x->blocks, n, width);
    else
        PUT("let column%d = part * %d\n", n, width);
    for (int v = 0; v < x->vectors; v++) {
        PUT("let %s = column%d + %d\n", lin_column(x, v), n, v * x->lanes);
        if (!lin_has_whole_vectors(x))
            PUT("let live%d.%d = ramp.x%d(%s, 1) < splat.x%d(%lld)\n", n, v, x->lanes, lin_column(x, v), x->lanes,
                x->dim_v);
    }
}

void lin_close_columns(const writer *x) {
    if (x->which == LIN_CHUNKS) PUT("}\n");
}

const char *lin_column(const writer *x, int v) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "c%d.%d", x->place, v);
    return text;
}

const char *lin_live(const writer *x, int v) {
    static _Thread_local char text[32];
    if (lin_has_whole_vectors(x)) return "";
    snprintf(text, sizeof text, " ? (live%d.%d)", x->place, v);
    return text;
}

/* Dimension `column` of a row of Q or K: begins a loop over its vectors, and defines a mask unless all are whole. */
static void open_row(const writer *x, const char *column, const char *mask, int n) {
    if (x->is_any)
        PUT("for vector_%s%d in 0..dim / %d {\nlet %s%d = vector_%s%d * %d\n", column, n, x->lanes, column, n, column,
            n, x->lanes);
    else
        PUT("for %s%d in 0..%lld by %d {\n", column, n, x->dim, x->lanes);
    if (x->dim % x->lanes)
        PUT("let %s%d = ramp.x%d(%s%d, 1) < splat.x%d(%lld)\n", mask, n, x->lanes, column, n, x->lanes, x->dim);
}

/* Its mask, for an access. */
static const char *row_mask(const writer *x, const char *mask, int n) {
    static _Thread_local char text[32] = "";
    if (x->dim % x->lanes == 0) return "";
    snprintf(text, sizeof text, " ? (%s%d)", mask, n);
    return text;
}

void lin_put_row(writer *x, const char *row, const char *to, const char *factor, const char *decay, const char *ahead) {
    const int n = x->names++, lanes = x->lanes;
    const char *const scaled = factor ? factor : "1.0";
    char from[32], sum[32];
    PUT("alloc factor%d: f32[] reg\nfactor%d[] = %s\nif qk_eps > 0.0 {\n", n, n, scaled);
    PUT("alloc squares%d: f32x%d[] reg\nsquares%d[] = splat.x%d(0.0)\n", n, lanes, n, lanes);
    open_row(x, "n", "m", n);
    PUT("let e%d = %s(%s, n%d]:x%d%s)\n", n, lin_cast(x->dtype), row, n, lanes, row_mask(x, "m", n));
    PUT("squares%d[] = (e%d * e%d) + squares%d[]\n}\n", n, n, n, n);
    snprintf(from, sizeof from, "squares%d[]", n);
    snprintf(sum, sizeof sum, "sum%d", n);
    lin_put_lane_sum(x, from, sum);
    PUT("factor%d[] = %s / sqrt(%s + qk_eps)\n}\n", n, scaled, sum);
    open_row(x, "d", "l", n);
    if (ahead) PUT("prefetch %s, d%d]\n", ahead, n);
    PUT("let f_%d = %s(%s, d%d]:x%d%s)\n", n, lin_cast(x->dtype), row, n, lanes, row_mask(x, "l", n));
    PUT("let g%d = f_%d * splat.x%d(factor%d[])\n", n, n, lanes, n);
    if (decay) {
        PUT("let h%d = exp2(%s(%s, d%d]:x%d%s) * splat.x%d(0x1.715476p+0))\n", n, lin_cast(x->decay_dtype), decay, n,
            lanes, row_mask(x, "l", n), lanes);
        PUT("%s, d%d]:x%d = g%d * h%d\n}\n", to, n, lanes, n, n);
    } else {
        PUT("%s, d%d]:x%d = g%d\n}\n", to, n, lanes, n);
    }
}

void lin_put_decays(writer *x, const char *decay, const char *to) {
    const int n = x->names++, lanes = x->lanes;
    open_row(x, "d", "l", n);
    PUT("%s, d%d]:x%d = exp2(%s(%s, d%d]:x%d%s) * splat.x%d(0x1.715476p+0))\n}\n", to, n, lanes,
        lin_cast(x->decay_dtype), decay, n, lanes, row_mask(x, "l", n), lanes);
}
