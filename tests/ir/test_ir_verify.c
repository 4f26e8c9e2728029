/* The verifier: accepted kernels, refused ones and their messages; accepted kernels run in bounds. */
#include "support/seed.h"
#include "ir/interp.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "support/ir/random_ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* Parses and verifies; the verifier's message, "" if it accepts. */
static attune_status verify_text(const char *text, ir_level level, const char *target, at_error *err) {
    at_arena arena;
    at_arena_init(&arena, NULL);
    *err = (at_error){.status = ATTUNE_OK};
    const ir_kernel *kernel = ir_parse(&arena, text, strlen(text), err);
    if (!kernel) fail_msg("does not parse: %s\n%s", err->message, text);
    const attune_status status = ir_verify(kernel, level, target ? at_target_find(target) : NULL, err);
    at_arena_free(&arena);
    return status;
}

/* ---- Bounds: a body for `x` of n elements, y of n x m, t of 64, table of n indices ---- */

static const char *const frame =
    "kernel @k (x: f32[n] inout, y: f32[n, m] inout, t: f32[64] inout, table: idx[n] in, n: idx, m: idx, p: idx,"
    " w: i32) { %s parallel for i in 0 .. n { %s } }";

typedef struct bounds_case {
    const char *assume, *body;
    const char *refusal; /* a part of the message; NULL: accepted */
} bounds_case;

static const bounds_case bounds_cases[] = {
    /* loops and offsets */
    {"", "x[i] = 1.0", NULL},
    {"", "x[i + 1] = 1.0", "cannot prove i + 1 <= n - 1 (dimension 0)"},
    {"", "x[i - 1] = 1.0", "cannot prove 0 <= i - 1 (dimension 0)"},
    {"", "for j in 0 .. n { x[j] = 1.0 }", NULL},
    {"", "for j in 0 .. n by 8 { x[j]:x8 = splat.x8(1.0) }", "x[j]:x8: cannot prove j + 7 <= n - 1"},
    {"", "for j in 0 .. n - 7 by 8 { x[j]:x8 = splat.x8(1.0) }", NULL},
    {"", "for j in 0 .. n - n % 8 by 8 { x[j]:x8 = splat.x8(1.0) }", NULL},
    {"", "for j in 0 .. n / 8 * 8 by 8 { x[j]:x8 = splat.x8(1.0) }", NULL},
    {"", "for j in 0 .. n / 8 { x[8 * j]:x8 = splat.x8(1.0) }", NULL},
    {"", "for j in 0 .. n / 8 + 1 { x[8 * j] = 1.0 }", "cannot prove"},
    {"", "for j in 0 .. 64 by 16 { t[j]:x16 = splat.x16(1.0) }", NULL},
    {"", "for j in 0 .. 60 by 16 { t[j]:x16 = splat.x16(1.0) }", NULL},
    {"", "for j in 0 .. 65 by 16 { t[j]:x16 = splat.x16(1.0) }", "cannot prove j + 15 <= 64 - 1"},
    {"", "for j in 0 .. 4 { for c in 0 .. 4 { t[j * 16 + c * 4]:x4 = splat.x4(1.0) } }", NULL},
    {"", "for j in 0 .. 4 { for c in 0 .. 5 { t[j * 16 + c * 4]:x4 = splat.x4(1.0) } }", "cannot prove"},
    {"", "for j in i .. n { x[j] = x[j - i] }", NULL},
    {"", "for j in 0 .. i { x[i - j] = 1.0 x[i - j - 1] = 1.0 }", NULL},
    {"", "for j in 0 .. i { x[i - j + 1] = 1.0 }", "cannot prove (i - j) + 1 <= n - 1"},
    {"", "for j in 0 .. min(n - i, 4) { x[i + j] = 1.0 }", NULL},
    {"", "for j in 0 .. max(n - i, 4) { x[i + j] = 1.0 }", "cannot prove"},
    {"", "for b in 0 .. n by 16 { for j in b .. min(b + 16, n) { x[j] = 1.0 t[j - b] = 1.0 } }", NULL},
    {"", "for b in 0 .. n by 16 { let e = min(16, n - b) for j in 0 .. e { x[b + j] = 1.0 t[j] = 1.0 } }", NULL},
    {"", "for j in 0 .. n { x[n - 1 - j] = 1.0 }", NULL},
    {"", "for j in 0 .. n { x[n - j] = 1.0 }", "cannot prove n - j <= n - 1"},
    /* the overlapped last tile, with and without enough rows */
    {"assume n >= 8", "for b in 0 .. n by 8 { let j = min(b, n - 8) x[j]:x8 = splat.x8(1.0) }", NULL},
    {"assume n >= 7", "for b in 0 .. n by 8 { let j = min(b, n - 8) x[j]:x8 = splat.x8(1.0) }", "cannot prove 0 <= j"},
    /* clamps */
    {"", "x[min(i + 5, n - 1)] = 1.0", NULL},
    {"", "x[max(i - 5, 0)] = 1.0", NULL},
    {"", "x[max(min(p, n - 1), 0)] = 1.0", NULL},
    {"", "x[min(max(p, 0), n - 1)] = 1.0", NULL},
    {"", "x[min(p, n - 1)] = 1.0", "cannot prove 0 <= min(p, n - 1)"},
    {"", "x[select(p < n, max(p, 0), i)] = 1.0", NULL},
    {"", "x[select(p > n, max(p, 0), i)] = 1.0", "cannot prove"},
    {"", "x[abs(i)] = 1.0", NULL},
    /* division and remainder */
    {"", "t[p % 64] = 1.0", NULL},
    {"", "t[p % 65] = 1.0", "cannot prove"},
    {"", "x[p % n] = 1.0", NULL},
    {"", "let z = p % m x[i] = 1.0", "cannot prove that the divisor m is not zero"},
    {"assume m > 0", "let z = p % m y[i, z] = 1.0", NULL},
    {"assume m != 0", "let z = p / m x[i] = 1.0", "divisor m"},
    {"assume m < 0", "let z = p / m x[i] = 1.0", NULL},
    {"", "let z = p / (i + 1) x[i] = 1.0", NULL},
    {"", "x[i / 3] = 1.0 x[i >> 2] = 1.0", NULL},
    {"", "x[i * 2 / 3] = 1.0", NULL},
    {"", "t[(i & 15) + (p & 31)] = 1.0", NULL},
    {"", "t[(i & 15) + (p & 63)] = 1.0", "cannot prove"},
    {"", "let q = i / 8 let r = i - q * 8 t[r] = 1.0 x[q * 8 + r] = 1.0", NULL},
    {"", "for j in 0 .. 64 { let q = j / 8 t[q * 8] = 1.0 t[q * 8 + 7] = 1.0 }", NULL},
    {"", "for j in 0 .. 64 { let q = j / 8 t[q * 8 + 8] = 1.0 }", "cannot prove"},
    {"", "let q = i / n x[q] = 1.0", NULL},
    /* 32-bit numbers wrap */
    {"assume w >= 0:i32 assume n == 5 ", "x[cast.idx(min(w, 4:i32))] = 1.0", NULL},
    {"assume w >= 0:i32", "x[cast.idx(w + 1:i32) % n] = 1.0", NULL},
    {"assume w >= 0:i32", "let z = 1 / cast.idx(w + 1:i32) x[i] = 1.0", "divisor"},
    {"assume w >= 0:i32", "let z = 1 / (cast.idx(w) + 1) x[i] = 1.0", NULL},
    /* facts */
    {"assume (p >= 0) & (p < n)", "x[p] = 1.0", NULL},
    {"assume (p >= 0) | (p < n)", "x[p] = 1.0", "cannot prove 0 <= p"},
    {"assume not((p < 0) | (p >= n))", "x[p] = 1.0", NULL},
    {"assume p == n", "x[p - 1 - i] = 1.0", NULL},
    {"assume p >= n", "for j in p - n .. p { x[j - p + n] = 1.0 }", NULL},
    {"", "if p >= 0 { if p < n { x[p] = 1.0 } }", NULL},
    {"", "if p < 0 { x[i] = 1.0 } else { if p >= n { x[i] = 2.0 } else { x[p] = 1.0 } }", NULL},
    {"", "if (p < 0) | (p >= n) { x[i] = 1.0 } else { x[p] = 1.0 }", NULL},
    {"", "if (p >= 0) & (p < n) { x[i] = 1.0 } x[p] = 1.0", "cannot prove 0 <= p"},
    {"", "if (p >= 0) & (p < n) { x[i] = 1.0 } else { x[p] = 1.0 }", "cannot prove 0 <= p"},
    {"", "let ok = (p >= 0) & (p < n) if ok { x[p] = 1.0 }", NULL},
    {"", "let q = table[i] x[q] = 1.0", "cannot prove 0 <= q"},
    {"", "let q = table[i] assume (q >= 0) & (q < n) x[q] = 1.0", NULL},
    {"", "let q = table[i] let r = table[i] assume (q >= r) & (r >= 0) & (q < p) & (p <= n) x[q] = 1.0", NULL},
    {"",
     "let q = table[i] let r = table[i] let s = table[i] assume (q >= r) & (r >= s) & (s >= 0) & (q < n) x[q] = 1.0",
     NULL},
    {"", "let q = table[i] let r = table[i] assume (q >= r) & (r >= 0) & (q < p) & (p <= n + 1) x[q] = 1.0",
     "cannot prove q <= n - 1"},
    {"", "if i > 3 { let q = table[i] assume (q >= 0) & (q < n) } let r = table[i] x[r] = 1.0", "cannot prove 0 <= r"},
    {"", "for j in 0 .. 9 { assume p >= 0 } for l in 0 .. 9 { x[min(p, i)] = 1.0 }", "cannot prove"},
    /* lets with an interval: that is all that is known of them, and it ends with their block */
    {"", "let q in 0..n = table[i] x[q] = 1.0", NULL},
    {"", "let q in 0..n + 1 = table[i] x[q] = 1.0", "cannot prove q <= n - 1"},
    {"", "let q in -1..n = table[i] x[q] = 1.0", "cannot prove 0 <= q"},
    {"", "let q in 0..n + 9 = i x[q] = 1.0", "cannot prove q <= n - 1"},
    {"", "let r in 1..9 = table[i] let q in 0..64 - r + 1 = table[i] for j in 0..r { t[q + j] = 1.0 }", NULL},
    {"", "let r in 1..9 = table[i] let q in 0..64 - r + 2 = 9 for j in 0..r { t[q + j] = 1.0 }", "cannot prove"},
    {"", "if i > 3 { let q in 0..p = i } x[max(0, p - 1)] = 1.0", "cannot prove"},
    {"", "let q in 7..7 = i x[p] = 1.0", NULL},
    {"", "let q in 0..n = table[i] for j in 0..q unroll { x[j] = 1.0 }", "its trip count is not a constant"},
    {"", "if i + p < n { if p >= 0 { x[i + p] = 1.0 x[i] = 1.0 } }", NULL},
    {"", "if p <= 0 { x[i] = 1.0 } else { x[min(p - 1, i)] = 1.0 }", NULL},
    {"", "if p >= 0 { x[min(p, i)] = 1.0 } x[min(p, i)] = 1.0", "cannot prove 0 <= min(p, i)"},
    {"", "for j in 0 .. 64 { t[min(j + 1, 63)] = 1.0 }", NULL},
    {"", "x[(i - n) % (n + 1)] = 1.0", "cannot prove"},
    /* two dimensions, products */
    {"assume n == 4 assume p <= 20", "t[60 + i * p - 3 * p] = 1.0", "cannot prove"},
    {"assume n == 4 assume (p >= 0) & (p <= 20)", "t[60 + i * p - 3 * p] = 1.0", NULL},
    {"", "for j in 0 .. m { y[i, j] = 1.0 }", NULL},
    {"", "for j in 0 .. n { y[i, j] = 1.0 }", "cannot prove j <= m - 1 (dimension 1)"},
    {"", "for j in 0 .. m { y[j, i] = 1.0 }", "cannot prove j <= n - 1 (dimension 0)"},
    {"assume n == 12 assume m == 3", "for a in 0 .. 3 { for c in 0 .. 4 { x[a * 4 + c] = y[c * 3 + a, a] } }", NULL},
    /* facts inside an entered loop */
    {"", "for j in 0 .. (m + 3) / 4 { y[i, max(m - 1, 0)] = 1.0 y[i, m - 1] = 1.0 }", NULL},
    {"", "for j in 0 .. (m + 4) / 4 { y[i, m - 1] = 1.0 }", "cannot prove 0 <= m - 1"},
    {"", "for j in 0 .. (m + 3) / 4 { for c in 0 .. 4 { y[i, min(j * 4 + c, m - 1)] = 1.0 } }", NULL},
    {"", "for j in 0 .. min(p, m) { y[i, m - 1] = 1.0 }", NULL},
    {"", "for j in 0 .. max(p, m) { y[i, m - 1] = 1.0 }", "cannot prove 0 <= m - 1"},
    /* many facts in scope, none of which is needed */
    {"assume m == 50",
     "for tile in 0 .. 8 { let first = tile * 7 let keys = min(min(50 - first, 7), i - first + 1)"
     " if keys > 0 { let full = max(min(i - 1 - first, keys), 0) for c in 0 .. 16 { for j in 0 .. full - 2 by 3 {"
     " for u in 0 .. 3 { let key = first + (j + u) y[i, key] = 1.0 } } } } }",
     NULL},
    {"assume m == 49",
     "for tile in 0 .. 8 { let first = tile * 7 let keys = min(min(50 - first, 7), i - first + 1)"
     " if keys > 0 { let full = max(min(i - 1 - first, keys), 0) for c in 0 .. 16 { for j in 0 .. full - 2 by 3 {"
     " for u in 0 .. 3 { let key = first + (j + u) y[i, key] = 1.0 } } } } }",
     "cannot prove key <= m - 1"},
    /* one fact that says it all, of a value with cases in cases */
    {"",
     "let g = table[i] let l = max(min(table[i], m), 0) let p0 = min(l - 1, i) + g let p1 = min(l - 1, i + 7) + g"
     " let f = max(0, select(p0 < 1, 0, p0))"
     " let e = (max(0, max(select(p1 < 1, l - 1, p1), select(p0 < 1, l - 1, p0))) + 48) / 48"
     " let s = (max(0, min(0, l - 1) + 1) + 47) / 48 let o = max(f / 48, s) for c in 0 .. s + max(0, e - o) {"
     " let u = select(c < s, c, max(0, o + (c - s))) let first = u * 48 assume l - first > 0 y[i, first] = 1.0 }",
     NULL},
    {"",
     "let g = table[i] let l = max(min(table[i], m), 0) let p0 = min(l - 1, i) + g let p1 = min(l - 1, i + 7) + g"
     " let f = max(0, select(p0 < 1, 0, p0))"
     " let e = (max(0, max(select(p1 < 1, l - 1, p1), select(p0 < 1, l - 1, p0))) + 48) / 48"
     " let s = (max(0, min(0, l - 1) + 1) + 47) / 48 let o = max(f / 48, s) for c in 0 .. s + max(0, e - o) {"
     " let u = select(c < s, c, max(0, o + (c - s))) let first = u * 48 assume l - first >= 0 y[i, first] = 1.0 }",
     "cannot prove first <= m - 1"},
    /* vectors */
    {"", "for j in 0 .. m - 3 by 4 { y[i, j]:x4 = y[i, j]:x4 }", NULL},
    {"", "for j in 0 .. m { y[i, j]:x4@0 = splat.x4(1.0) }", "cannot prove i + 3 <= n - 1 (dimension 0)"},
    {"", "let v = x[min(ramp.x8(i, 1), splat.x8(n - 1))]:x8 x[i] = 1.0", NULL},
    {"", "let v = x[ramp.x8(i, 1)]:x8 x[i] = 1.0", "cannot prove"},
    {"", "let v = t[ramp.x8(0, 9)]:x8 x[i] = 1.0", NULL},
    {"", "let v = t[ramp.x8(1, 9)]:x8 x[i] = 1.0", "cannot prove"},
    {"", "x[i]:x8 ? (ramp.x8(i, 1) < splat.x8(n)) = splat.x8(1.0)", NULL},
    {"", "x[i]:x8 ? (ramp.x8(i, 1) <= splat.x8(n)) = splat.x8(1.0)", "cannot prove"},
    {"", "let mk = ramp.x8(i, 1) < splat.x8(n) let v = x[i]:x8 ? (mk) x[i] = 1.0", NULL},
    {"", "let mk = ramp.x8(i, 2) < splat.x8(n) let v = x[ramp.x8(i, 2)]:x8 ? (mk) x[i] = 1.0", NULL},
    {"", "let mk = ramp.x8(i, 1) < splat.x8(n) let v = x[i]:x8 ? (not(mk)) x[i] = 1.0", "cannot prove"},
    {"",
     "let mk = ramp.x8(i, 1) < splat.x8(n)"
     " let v = x[i]:x8 ? (shuffle(mk, mk, [7, 6, 5, 4, 3, 2, 1, 0])) x[i] = 1.0",
     "cannot prove"},
    {"", "prefetch x[i + 4096] x[i] = 1.0", NULL},
};

static void test_bounds(void **state) {
    (void)state;
    char text[1024];
    at_error err;
    int wrong = 0;
    for (size_t c = 0; c < LENGTH(bounds_cases); c++) {
        const bounds_case *one = &bounds_cases[c];
        snprintf(text, sizeof text, frame, one->assume, one->body);
        const attune_status status = verify_text(text, IR_SCHEDULED, NULL, &err);
        const bool right =
            one->refusal ? status == ATTUNE_INVALID_IR && strstr(err.message, one->refusal) : status == ATTUNE_OK;
        if (right) continue;
        wrong++;
        print_error("%s { %s }\n  expected %s, got %s\n", one->assume, one->body,
                    one->refusal ? one->refusal : "acceptance", status ? err.message : "acceptance");
    }
    assert_int_equal(wrong, 0);
}

/* ---- Rules of each level ---- */

typedef struct rule_case {
    const char *text, *target; /* target NULL: scheduled */
    const char *refusal;
} rule_case;

#define KERNEL(body) "kernel @k (x: f32[16] in, o: f32[16] out, n: idx) { parallel for i in 0 .. 16 { " body " } }"

static const rule_case rule_cases[] = {
    {KERNEL("o[i] = x[i]"), "avx2", NULL},
    {KERNEL("x[i] = 1.0"), NULL, "'x' is only read (in), so it cannot be written"},
    {KERNEL("o[i] = o[i]"), NULL, "'o' is only written (out), so it cannot be read"},
    {KERNEL("o[i] = exp2(x[i])")},
    {KERNEL("o[i] = exp2(x[i])"), "avx2", "'exp2' must not be left in lowered IR"},
    {KERNEL("o[i] = fma(x[i], x[i], 1.0)"), "avx2", NULL},
    {KERNEL("o[i] = fma(x[i], x[i], 1.0)"), "x86-64", "target x86-64 has no instruction for fused multiply-add"},
    {KERNEL("o[i] = rint(x[i])"), "x86-64", "no instruction for rounding"},
    {KERNEL("o[i] = ldexp(x[i], 1.0)"), "avx2", "no instruction for scaling"},
    {KERNEL("o[i] = ldexp(x[i], 1.0)"), "avx512", NULL},
    {KERNEL("for j in 0 .. 4 unroll { o[j] = 1.0 }")},
    {KERNEL("for j in 0 .. 4 unroll { o[j] = 1.0 }"), "avx2", "still to be unrolled"},
    {KERNEL("for j in 0 .. 4 unroll { for l in j .. 2 * j unroll { o[l] = 1.0 } }")},
    {KERNEL("let q in 0..16 = i o[q] = 1.0"), "avx2", "let 'q' has an interval in lowered IR"},
    {KERNEL("for j in i .. 4 unroll { o[j] = 1.0 }"), NULL, "its trip count is not a constant"},
    {KERNEL("for j in 0 .. min(n, 4) unroll { o[j] = 1.0 }"), NULL, "its trip count is not a constant"},
    {KERNEL("alloc a: f32x4[2] reg a[1] = splat.x4(1.0) o[0]:x4 = a[1]:x4"), "avx2", NULL},
    {KERNEL("alloc a: f32[2] reg a[i / 8] = 1.0")},
    {KERNEL("alloc a: f32[2] reg a[i / 8] = 1.0"), "avx2", "must be a constant in lowered IR"},
    {KERNEL("alloc a: f32[2] reg a[2] = 1.0"), NULL, "cannot prove 2 <= 2 - 1"},
    {KERNEL("alloc a: f32[2, 8] scratch a[1, i / 2] = 1.0")},
    {KERNEL("alloc a: f32[2, 8] scratch a[1, i] = 1.0"), NULL, "a[1, i]: cannot prove i <= 8 - 1 (dimension 1)"},
    {"kernel @k (o: f32[n] out, n: idx) { alloc s: f32[2 * n] shared"
     " parallel for i in 0 .. 2 * n { s[i] = 1.0 } parallel for j in 0 .. n { o[j] = s[n + j] } }",
     "avx2", NULL},
    {"kernel @k (o: f32[n, 8] strides [s, 1] out, n: idx, s: idx) { parallel for i in 0 .. n, j in 0 .. 8"
     " { o[i, j] = 1.0 } }",
     "avx2", NULL},
    {"kernel @k (o: f32[n] out, n: idx, f: f32) { parallel for i in 0 .. cast.idx(exp2(f)) { } }", NULL,
     "made of more than constants and scalar parameters"},
};

static void test_rules(void **state) {
    (void)state;
    at_error err;
    int wrong = 0;
    for (size_t c = 0; c < LENGTH(rule_cases); c++) {
        const rule_case *one = &rule_cases[c];
        const attune_status status = verify_text(one->text, one->target ? IR_LOWERED : IR_SCHEDULED, one->target, &err);
        const bool right =
            one->refusal ? status == ATTUNE_INVALID_IR && strstr(err.message, one->refusal) : status == ATTUNE_OK;
        if (right) continue;
        wrong++;
        print_error("%s\n  expected %s, got %s\n", one->text, one->refusal ? one->refusal : "acceptance",
                    status ? err.message : "acceptance");
    }
    assert_int_equal(wrong, 0);
}

/* ---- Kernels that the builder would not build: each is a good one with one thing broken ---- */

static ir_stmt *statement(ir_kernel *kernel, int n) {
    ir_stmt *s = kernel->phases->body.first;
    while (n-- > 0) s = s->next;
    return s;
}

/* Nodes are immutable to all but these tests. */
#define MUTABLE(type, pointer) ((type *)(uintptr_t)(pointer))

static void same_name(ir_kernel *k) { MUTABLE(ir_var, statement(k, 1)->u.let.var)->name = "x"; }
static void same_id(ir_kernel *k) { MUTABLE(ir_var, statement(k, 1)->u.let.var)->id = 0; }
static void large_id(ir_kernel *k) { MUTABLE(ir_var, statement(k, 1)->u.let.var)->id = 1000; }
static void odd_lanes(ir_kernel *k) { MUTABLE(ir_expr, statement(k, 1)->u.let.value)->type.lanes = 3; }
static void many_lanes(ir_kernel *k) { MUTABLE(ir_expr, statement(k, 1)->u.let.value)->type.lanes = 128; }
static void no_operator(ir_kernel *k) { MUTABLE(ir_expr, statement(k, 1)->u.let.value)->op = 200; }
static void no_operand(ir_kernel *k) { MUTABLE(ir_expr, statement(k, 1)->u.let.value)->args[1] = NULL; }
static void wrong_result(ir_kernel *k) { MUTABLE(ir_expr, statement(k, 1)->u.let.value)->type.elem = IR_I64; }
static void wrong_class(ir_kernel *k) { MUTABLE(ir_expr, statement(k, 1)->u.let.value)->op = IR_SQRT; }
static void let_type(ir_kernel *k) { MUTABLE(ir_var, statement(k, 1)->u.let.var)->type.elem = IR_I64; }
static void use_before(ir_kernel *k) {
    ir_stmt *alloc = statement(k, 0), *let = alloc->next, *store = let->next;
    alloc->next = store;
    let->next = store->next;
    store->next = let;
}
static void foreign_buffer(ir_kernel *k) {
    static ir_buffer other;
    const ir_access *access = statement(k, 2)->u.store.access;
    other = *access->buffer;
    MUTABLE(ir_access, access)->buffer = &other;
}
static void store_type(ir_kernel *k) { MUTABLE(ir_access, statement(k, 2)->u.store.access)->lanes = 2; }
static void no_index(ir_kernel *k) { MUTABLE(ir_access, statement(k, 2)->u.store.access)->indices[0] = NULL; }
static void no_step(ir_kernel *k) { statement(k, 3)->u.loop.step = 0; }
static void odd_alloc(ir_kernel *k) { MUTABLE(ir_buffer, statement(k, 0)->u.alloc)->type.lanes = 5; }
static void no_dim(ir_kernel *k) { MUTABLE(ir_buffer, statement(k, 0)->u.alloc)->dims[0] = NULL; }
static void param_alloc(ir_kernel *k) { MUTABLE(ir_buffer, statement(k, 0)->u.alloc)->space = IR_PARAM; }
static void far_pick(ir_kernel *k) { MUTABLE(uint8_t, statement(k, 4)->u.let.value->value.pick)[1] = 8; }
static void wide_reg(ir_kernel *k) { MUTABLE(ir_access, statement(k, 5)->u.store.access)->lanes = 8; }
static void large_bool(ir_kernel *k) { MUTABLE(ir_expr, statement(k, 6)->u.branch.condition)->value.i = 2; }
static void float_condition(ir_kernel *k) { MUTABLE(ir_expr, statement(k, 6)->u.branch.condition)->type.elem = IR_I32; }
static void no_phases(ir_kernel *k) { k->num_phases = 2; }
static void statement_kind(ir_kernel *k) { statement(k, 3)->kind = 99; }

static void test_malformed(void **state) {
    (void)state;
    static const char *const text =
        "kernel @k (x: f32[64] inout, n: idx) { parallel for i in 0 .. 8 { alloc r: f32x4[2] reg let a = i + 1"
        " x[a] = 1.0 for j in 0 .. 4 { x[j] = 2.0 } let v = shuffle(x[0]:x4, x[4]:x4, [0, 1]) r[1] = splat.x4(0.5)"
        " if true { x[0] = 1.0 } } }";
    static const struct {
        void (*break_it)(ir_kernel *kernel);
        const char *refusal;
    } cases[] = {
        {same_name, "the name 'x' is given twice"},
        {same_id, "has the id 0, which is taken"},
        {large_id, "has the id 1000, which is too large"},
        {odd_lanes, "and 3 lanes, which is not all valid"},
        {many_lanes, "and 128 lanes, which is not all valid"},
        {no_operator, "operator 200"},
        {no_operand, "an expression is missing"},
        {wrong_result, "wrong type"},
        {wrong_class, "'sqrt' does not work on idx"},
        {let_type, "has not its value's type"},
        {use_before, "'a' is used outside of its scope"},
        {foreign_buffer, "'x' is used outside of its scope"},
        {store_type, "the value has another type"},
        {no_index, "lacks an index"},
        {no_step, "has step 0"},
        {odd_alloc, "'r' has elements of 5 lanes"},
        {no_dim, "dimension 0 of 'r' is not a constant above 0"},
        {param_alloc, "is neither scratch nor reg"},
        {far_pick, "pick 8 is beyond the 8 lanes"},
        {wide_reg, "in whole elements of 4 lanes"},
        {large_bool, "neither 0 nor 1"},
        {float_condition, "is not a scalar bool"},
        {no_phases, "it has 1 phases and says 2"},
        {statement_kind, "a statement of kind 99"},
    };
    for (size_t c = 0; c < LENGTH(cases); c++) {
        at_arena arena;
        at_arena_init(&arena, NULL);
        at_error err = {.status = ATTUNE_OK};
        ir_kernel *kernel = ir_parse(&arena, text, strlen(text), &err);
        if (!kernel || ir_verify(kernel, IR_SCHEDULED, NULL, &err)) fail_msg("%s", err.message);
        cases[c].break_it(kernel);
        if (ir_verify(kernel, IR_SCHEDULED, NULL, &err) != ATTUNE_INVALID_IR || !strstr(err.message, cases[c].refusal))
            fail_msg("case %zu: expected '%s', got '%s'", c, cases[c].refusal, err.message);
        at_arena_free(&arena);
    }
}

/* ---- Refused memory ---- */

typedef struct failing {
    int left; /* allocations that still succeed */
} failing;

static void *failing_allocate(void *user, size_t bytes, size_t align) {
    failing *f = user;
    return f->left-- > 0 ? aligned_alloc(align, (bytes + align - 1) / align * align) : NULL;
}

static void failing_free(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

/* Whatever allocation is refused: out of memory, and never a verdict. */
static void test_refused_memory(void **state) {
    (void)state;
    static const char *const text = "kernel @k (x: f32[n] inout, n: idx) { parallel for i in 0 .. n {"
                                    " for j in 0 .. n - n % 8 by 8 { x[min(j, n - 8)]:x8 = splat.x8(1.0) } } }";
    for (int n = 0;; n++) {
        failing f = {1000};
        const attune_allocator allocator = {failing_allocate, failing_free, &f};
        at_arena arena;
        at_arena_init(&arena, &allocator);
        at_error err = {.status = ATTUNE_OK};
        ir_kernel *kernel = ir_parse(&arena, text, strlen(text), &err);
        assert_non_null(kernel);
        f.left = n;
        const attune_status status = ir_verify(kernel, IR_SCHEDULED, NULL, &err);
        at_arena_free(&arena);
        if (f.left > 0) {
            assert_int_equal(status, ATTUNE_OK);
            assert_true(n > 0);
            return;
        }
        assert_true(status == ATTUNE_OUT_OF_MEMORY || status == ATTUNE_OK);
        if (status == ATTUNE_OK) assert_int_equal(f.left, 0);
    }
}

/* ---- Soundness: what is accepted runs without a complaint of the interpreter ---- */

static void run_in_bounds(const random_ir *r, const ir_kernel *kernel, const int64_t arguments[3]) {
    const size_t n = (size_t)arguments[0], m = (size_t)arguments[1];
    float *x = calloc(n + 1, sizeof *x), *y = calloc(n * m + 1, sizeof *y), t[RANDOM_IR_T] = {0};
    at_error err = {.status = ATTUNE_OK};
    if (ir_interpret(kernel, (void *const[]){x, y, t}, arguments, &(ir_interp_options){.shuffle_seed = 1}, &err))
        fail_msg("accepted, but with n = %zu, m = %zu, p = %lld: %s\n%s", n, m, (long long)arguments[2], err.message,
                 r->text);
    free(x);
    free(y);
}

static void test_accepted_runs_in_bounds(void **state) {
    random_ir *r = *state;
    int accepted = 0;
    for (int k = 0; k < 20000; k++) {
        r->careful = k % 4 * 30;
        random_ir_kernel(r);
        at_arena arena;
        at_arena_init(&arena, NULL);
        at_error err = {.status = ATTUNE_OK};
        const ir_kernel *kernel = ir_parse(&arena, r->text, strlen(r->text), &err);
        if (!kernel) fail_msg("does not parse: %s\n%s", err.message, r->text);
        if (ir_verify(kernel, IR_SCHEDULED, NULL, &err) == ATTUNE_OK) {
            accepted++;
            for (int run = 0; run < 8; run++) {
                int64_t arguments[3];
                random_ir_arguments(r, arguments);
                run_in_bounds(r, kernel, arguments);
            }
        }
        at_arena_free(&arena);
    }
    print_message("# %d of 20000 random kernels accepted\n", accepted);
    assert_true(accepted > 1000);
}

static int make_random(void **state) {
    random_ir *r = calloc(1, sizeof *r);
    r->state = test_seed();
    *state = r;
    return 0;
}

static int free_random(void **state) {
    free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_refused_memory),
        cmocka_unit_test_setup_teardown(test_accepted_runs_in_bounds, make_random, free_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
