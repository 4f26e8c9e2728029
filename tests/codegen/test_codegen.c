/* The code generator against the interpreter, bit for bit: every operator, element and lane count on edge values, on
 * each instruction set that this machine runs; every form of access; statements; the plan. Code that this machine
 * cannot run is still compiled. NaNs compare as a class. */
#include "support/seed.h"
#include "codegen/compile.h"
#include "ir/interp.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "support/ir/jit_run.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum { COUNT = 1024, MAX_BUFFERS = 8, BUFFER_BYTES = COUNT * 8, TEXT_BYTES = 16384 };

static uint64_t random_state;

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* ---- Values ---- */

static const double float_edges[] = {0.0,
                                     -0.0,
                                     1.0,
                                     -1.0,
                                     0.5,
                                     -2.5,
                                     3.5,
                                     0x1p-149,
                                     -0x1p-130,
                                     0x1.fffffep127,
                                     -0x1.fffffep127,
                                     2147483648.0,
                                     -2147483648.0,
                                     INFINITY,
                                     -INFINITY,
                                     NAN};
static const double double_edges[] = {0.0,
                                      -0.0,
                                      1.0,
                                      -1.0,
                                      0.5,
                                      -2.5,
                                      0x1p-1074,
                                      -0x1p-1030,
                                      0x1.fffffffffffffp1023,
                                      9223372036854775808.0,
                                      -9223372036854775808.0,
                                      2147483647.5,
                                      -2147483649.0,
                                      INFINITY,
                                      -INFINITY,
                                      NAN};
/* One of them, on the way to f32 through f64, would be rounded twice. */
static const int64_t int_edges[] = {
    0, 1, -1, 2, -2, 7, 31, 32, 63, 64, -128, INT64_C(0x4000004000000001), INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
enum { EDGES = 16 };

static double random_double(void) {
    const double unit = (double)(int64_t)random_bits() * 0x1p-63;
    return ldexp(unit,
                 (int)(random_bits() % 4 ? random_bits() % 48 : random_bits() % 240) - (int)(random_bits() % 200));
}

/* Every third value lies half-way between two neighbours of a narrower format (f16, bf16, f8). */
static float random_float(void) {
    static const int dropped_bits[] = {13, 16, 20};
    const uint64_t choice = random_bits() % 9;
    float value = (float)random_double();
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (choice < 3) bits = bits >> dropped_bits[choice] << dropped_bits[choice] | 1u << (dropped_bits[choice] - 1);
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static int64_t random_int(void) { return (int64_t)random_bits() >> (random_bits() % 64); }

/* Element `i` of a buffer: an edge if edge >= 0, else at random. */
static void put_value(ir_elem elem, void *buffer, size_t i, int edge) {
    const int64_t integer = edge >= 0 ? int_edges[edge] : random_int();
    const double real = edge < 0 ? random_double() : double_edges[edge];
    switch (elem) {
    case IR_F64: ((double *)buffer)[i] = real; break;
    case IR_F32: ((float *)buffer)[i] = edge < 0 ? random_float() : (float)float_edges[edge]; break;
    case IR_F16:
    case IR_BF16: ((uint16_t *)buffer)[i] = (uint16_t)(edge >= 0 ? edge * 0x1111 : (int)random_bits()); break;
    case IR_F8:
    case IR_I8: ((uint8_t *)buffer)[i] = (uint8_t)(edge >= 0 ? edge * 0x11 : (int)random_bits()); break;
    case IR_I32: ((int32_t *)buffer)[i] = (int32_t)integer; break;
    case IR_BOOL: ((uint8_t *)buffer)[i] = (uint8_t)(edge >= 0 ? edge & 1 : (int)(random_bits() & 1)); break;
    default: ((int64_t *)buffer)[i] = integer; break;
    }
}

/* Buffer number `which` of several: the first two meet in all pairs of edges. */
static void fill(ir_elem elem, void *buffer, int which) {
    for (size_t i = 0; i < COUNT; i++) {
        int edge = -1;
        if (i < EDGES * EDGES) edge = (int)(which == 0 ? i % EDGES : which == 1 ? i / EDGES : i * 7 / 3 % EDGES);
        put_value(elem, buffer, i, edge);
    }
}

static bool is_nan(ir_elem elem, const void *buffer, size_t i) {
    const uint16_t half = ((const uint16_t *)buffer)[elem == IR_F16 || elem == IR_BF16 ? i : 0] & 0x7fff;
    switch (elem) {
    case IR_F64: return ((const double *)buffer)[i] != ((const double *)buffer)[i];
    case IR_F32: return ((const float *)buffer)[i] != ((const float *)buffer)[i];
    case IR_F16: return half > 0x7c00;
    case IR_BF16: return half > 0x7f80;
    case IR_F8: return (((const uint8_t *)buffer)[i] & 0x7f) == 0x7f;
    default: return false;
    }
}

/* ---- Both engines ---- */

typedef struct memory {
    _Alignas(64) unsigned char bytes[MAX_BUFFERS][BUFFER_BYTES];
} memory;

static memory initial, interpreted, compiled;

static void pointers(memory *m, void *out[MAX_BUFFERS]) {
    for (int i = 0; i < MAX_BUFFERS; i++) out[i] = m->bytes[i];
}

static const ir_kernel *lowered_kernel(at_arena *arena, const char *text, const at_target *target) {
    at_error err = {0};
    const ir_kernel *kernel = ir_parse(arena, text, strlen(text), &err);
    if (!kernel) fail_msg("does not parse: %s\n%s", err.message, text);
    if (ir_verify(kernel, IR_LOWERED, target, &err)) fail_msg("does not verify: %s\n%s", err.message, text);
    return kernel;
}

static void compare_outputs(const ir_kernel *kernel, const at_target *target, const char *text) {
    int n = 0;
    for (uint32_t p = 0; p < kernel->num_params; p++) {
        const ir_buffer *buffer = kernel->params[p].buffer;
        if (!buffer) continue;
        const ir_elem elem = (ir_elem)buffer->type.elem;
        const size_t width = ir_elem_get(elem)->bytes;
        const unsigned char *want = interpreted.bytes[n], *have = compiled.bytes[n];
        for (size_t i = 0; i < COUNT; i++) {
            if (memcmp(want + i * width, have + i * width, width) == 0) continue;
            if (is_nan(elem, want, i) && is_nan(elem, have, i)) continue;
            uint64_t want_bits = 0, have_bits = 0;
            memcpy(&want_bits, want + i * width, width);
            memcpy(&have_bits, have + i * width, width);
            fail_msg("%s: %s[%zu] is %#llx, the interpreter says %#llx\n%s", target->name, buffer->name, i,
                     (unsigned long long)have_bits, (unsigned long long)want_bits, text);
        }
        n++;
    }
}

/* Runs `text` on `initial` by both engines and compares every buffer; where the target does not run here, compiles. */
static void check_kernel(const char *text, const at_target *target, const int64_t *scalars, int64_t range) {
    at_arena arena;
    at_error err = {0};
    void *buffers[MAX_BUFFERS];
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = lowered_kernel(&arena, text, target);
    if (target_can_run(target)) {
        interpreted = compiled = initial;
        pointers(&interpreted, buffers);
        if (ir_interpret(kernel, buffers, scalars, NULL, &err)) fail_msg("interpreter: %s\n%s", err.message, text);
        pointers(&compiled, buffers);
        if (jit_run(kernel, target, buffers, scalars, range, &err)) fail_msg("compiled: %s\n%s", err.message, text);
        compare_outputs(kernel, target, text);
    } else {
        void *image;
        size_t bytes;
        if (cg_compile(kernel, target, ATTUNE_STAGE_IMAGE, &image, &bytes, &err))
            fail_msg("%s: %s\n%s", target->name, err.message, text);
        at_free(NULL, image);
    }
    at_arena_free(&arena);
}

/* ---- Operators ---- */

/* Few: shortly, as in continuous integration. */
static int lane_counts[] = {1, 2, 4, 8, 16, 32};
static size_t num_lane_counts = LENGTH(lane_counts);

/* One lane, a whole vector of 16 bytes, and one of 64. */
static void take_few_lane_counts(void) {
    lane_counts[1] = 4;
    lane_counts[2] = 16;
    num_lane_counts = 3;
}

static bool target_has(const at_target *target, uint16_t traits) {
    return !(traits & (IR_TRAIT_HIGH | IR_TRAIT_NEEDS_DOT2 | IR_TRAIT_NEEDS_LOOKUP)) &&
           (!(traits & IR_TRAIT_NEEDS_FMA) || target->flags & AT_TARGET_FMA) &&
           (!(traits & IR_TRAIT_NEEDS_ROUND) || target->flags & AT_TARGET_ROUND) &&
           (!(traits & IR_TRAIT_NEEDS_SCALEF) || target->flags & AT_TARGET_SCALEF);
}

/* o[i] = body, where $ stands for ":xLANES". Buffers x, y, z of element `in`, c of bool, o of element `out`. */
static void check_body(const at_target *target, ir_elem in, ir_elem out, int lanes, const char *body) {
    char expanded[1024], text[2048], suffix[16] = "";
    size_t n = 0;
    if (lanes > 1) snprintf(suffix, sizeof suffix, ":x%d", lanes);
    for (const char *p = body; *p && n < sizeof expanded - 8; p++)
        n += (size_t)snprintf(expanded + n, sizeof expanded - n, "%.*s", *p == '$' ? 15 : 1, *p == '$' ? suffix : p);
    const char *from = ir_elem_get(in)->name;
    snprintf(text, sizeof text,
             "kernel @op (x: %s[%d] in, y: %s[%d] in, z: %s[%d] in, c: bool[%d] in, o: %s[%d] out) {\n"
             "  parallel for t in 0..%d {\n    let i = t * %d\n    o[i]%s = %s\n  }\n}\n",
             from, COUNT, from, COUNT, from, COUNT, COUNT, ir_elem_get(out)->name, COUNT, COUNT / lanes, lanes, suffix,
             expanded);
    memset(&initial, 0, sizeof initial);
    for (int b = 0; b < 3; b++) fill(in, initial.bytes[b], b);
    fill(IR_BOOL, initial.bytes[3], 2);
    check_kernel(text, target, NULL, 0);
}

static void check_operator(const at_target *target, ir_op op, ir_elem elem, int lanes) {
    const ir_op_info *info = ir_op_get(op);
    char body[256];
    if (info->traits & IR_TRAIT_INFIX)
        snprintf(body, sizeof body, "x[i]$ %s y[i]$", info->text);
    else
        snprintf(body, sizeof body, "%s(x[i]$%s%s)", info->text, info->arity > 1 ? ", y[i]$" : "",
                 info->arity > 2 ? ", z[i]$" : "");
    check_body(target, elem, info->result == IR_RESULT_CMP ? IR_BOOL : elem, lanes, body);
}

static void each_operator(const at_target *target) {
    for (int op = 0; op < IR_OP_COUNT; op++) {
        const ir_op_info *info = ir_op_get((ir_op)op);
        if (info->result == IR_RESULT_SPECIAL || !target_has(target, info->traits)) continue;
        for (int elem = 0; elem < IR_ELEM_COUNT; elem++) {
            const uint8_t class = ir_elem_get((ir_elem)elem)->class;
            if (!(info->accepts & class) || ((op == IR_DIV || op == IR_MOD) && class == IR_CLASS_INT)) continue;
            for (size_t l = 0; l < num_lane_counts; l++)
                check_operator(target, (ir_op)op, (ir_elem)elem, lane_counts[l]);
        }
    }
}

/* The verifier wants divisors that it can see are not zero. */
static void each_division(const at_target *target) {
    static const ir_elem elems[] = {IR_I32, IR_I64, IR_IDX};
    static const char *const divisors[] = {"1", "2", "3", "64", "7", "-1", "-3", "-8", "2147483647"};
    for (size_t t = 0; t < LENGTH(elems); t++)
        for (size_t d = 0; d < LENGTH(divisors); d++)
            for (size_t l = 0; l < num_lane_counts; l++)
                for (int mod = 0; mod < 2; mod++) {
                    char body[128], divisor[64];
                    snprintf(divisor, sizeof divisor, "%s:%s", divisors[d], ir_elem_get(elems[t])->name);
                    if (lane_counts[l] == 1)
                        snprintf(body, sizeof body, "x[i] %c %s", "/%"[mod], divisor);
                    else
                        snprintf(body, sizeof body, "x[i]$ %c splat.x%d(%s)", "/%"[mod], lane_counts[l], divisor);
                    check_body(target, elems[t], elems[t], lane_counts[l], body);
                }
}

static bool cast_exists(ir_elem from, ir_elem to) {
    const uint8_t a = ir_elem_get(from)->class, b = ir_elem_get(to)->class, number = IR_CLASS_FLOAT | IR_CLASS_INT;
    if (a == IR_CLASS_STORAGE) return to == (from == IR_I8 ? IR_I32 : IR_F32);
    if (b == IR_CLASS_STORAGE) return from == (to == IR_I8 ? IR_I32 : IR_F32);
    return a == IR_CLASS_BOOL ? b == IR_CLASS_INT : (b & number) != 0;
}

static void each_cast(const at_target *target) {
    char body[64];
    for (int from = 0; from < IR_ELEM_COUNT; from++)
        for (int to = 0; to < IR_ELEM_COUNT; to++)
            for (size_t l = 0; l < num_lane_counts; l++) {
                if (!cast_exists((ir_elem)from, (ir_elem)to)) continue;
                snprintf(body, sizeof body, "cast.%s(x[i]$)", ir_elem_get((ir_elem)to)->name);
                check_body(target, (ir_elem)from, (ir_elem)to, lane_counts[l], body);
            }
    for (size_t l = 0; l < num_lane_counts && target->flags & AT_TARGET_ROUND; l++) /* may be one instruction */
        check_body(target, IR_F32, IR_I32, lane_counts[l], "cast.i32(rint(x[i]$))");
}

/* Sums of dot2 around 2^-126: it or a unit more, and two products of half a unit to two. */
static void dot2_at_denormals(const at_target *target, int lanes) {
    static const int32_t constants[4] = {-2139127681 /* 0x807f807f */, 0x1a001a00, -2147483647, 0x00800000};
    char bits[4][40], body[512];
    for (int i = 0; i < 4; i++)
        snprintf(bits[i], sizeof bits[i], lanes > 1 ? "splat.x%2$d(%1$d:i32)" : "%1$d:i32", constants[i], lanes);
    snprintf(body, sizeof body,
             "dot2(bitcast.bf16((x[i]$ & %s) | %s), bitcast.bf16((y[i]$ & %s) | %s), bitcast.f32((z[i]$ & %s) | %s))",
             bits[0], bits[1], bits[0], bits[1], bits[2], bits[3]);
    check_body(target, IR_I32, IR_F32, lanes, body);
}

/* Pairs of bf16: `lanes` of them. */
static void each_pair(const at_target *target, int lanes) {
    if (lanes * 2 > IR_MAX_LANES) return;
    check_body(target, IR_I32, IR_I32, lanes, "bitcast.i32(bitcast.bf16(x[i]$)) ^ y[i]$");
    check_body(target, IR_F16, IR_F16, lanes, "bitcast.f16(bitcast.i8(x[i]$))");
    check_body(target, IR_F32, IR_F32, lanes, "cast.f32(bitcast.f16(bitcast.i8(cast.f16(x[i]$)))) + y[i]$");
    check_body(target, IR_F32, IR_F32, lanes, "bitcast.f32(bitcast.i32(bitcast.bf16(bitcast.i32(x[i]$))))");
    if (!(target->flags & AT_TARGET_BF16_DOT)) return;
    check_body(target, IR_F32, IR_I32, lanes, "bitcast.i32(pack2(x[i]$, y[i]$))");
    check_body(target, IR_F32, IR_F32, lanes, "dot2(pack2(x[i]$, y[i]$), pack2(z[i]$, x[i]$), y[i]$)");
    check_body(target, IR_I32, IR_F32, lanes, "dot2(bitcast.bf16(x[i]$), bitcast.bf16(y[i]$), bitcast.f32(z[i]$))");
    dot2_at_denormals(target, lanes);
}

/* Fours of bytes: `lanes` of them. The extremes, all bytes 255 and -128, come from `|` and `&`. */
static void each_four(const at_target *target, int lanes) {
    if (lanes * 4 > IR_MAX_LANES) return;
    char body[256];
    check_body(target, IR_I32, IR_I32, lanes, "bitcast.i32(bitcast.i8(x[i]$)) ^ y[i]$");
    check_body(target, IR_I32, IR_I32, lanes, "dot4(bitcast.i8(x[i]$), bitcast.i8(y[i]$), z[i]$)");
    snprintf(body, sizeof body,
             lanes > 1 ? "dot4(bitcast.i8(x[i]$ | splat.x%2$d(%1$d:i32)), bitcast.i8(splat.x%2$d(%3$d:i32)), z[i]$)"
                       : "dot4(bitcast.i8(x[i] | %1$d:i32), bitcast.i8(%3$d:i32), z[i]) + %2$d:i32",
             -1, lanes, (int)0x80808080);
    check_body(target, IR_I32, IR_I32, lanes, body);
    check_body(target, IR_I32, IR_I32, lanes, "bitcast.i32(bitcast.f8(x[i]$)) ^ y[i]$");
    if (lanes * 4 >= IR_LEAST_LOOKUP && target->flags & AT_TARGET_LOOKUP)
        check_body(target, IR_I32, IR_I32, lanes,
                   "bitcast.i32(lookup(bitcast.i8(x[i]$), bitcast.i8(y[i]$), bitcast.i8(z[i]$)))");
    if (lanes < IR_LEAST_WORDS || !(target->flags & AT_TARGET_LOOKUP)) return;
    check_body(target, IR_I32, IR_I32, lanes,
               "bitcast.i32(lookup(bitcast.f32(x[i]$), bitcast.f32(y[i]$), z[i]$)) ^ "
               "bitcast.i32(lookup(bitcast.f32(x[i]$), bitcast.f32(x[i]$), z[i]$))");
}

static void each_rearrangement(const at_target *target) {
    for (size_t l = 0; l < num_lane_counts; l++) {
        const int lanes = lane_counts[l];
        char body[512];
        for (int elem = 0; elem < IR_ELEM_COUNT; elem++) {
            check_body(target, (ir_elem)elem, (ir_elem)elem, lanes, "select(c[i]$, x[i]$, y[i]$)");
            if (lanes > 1) {
                snprintf(body, sizeof body, "splat.x%d(x[i])", lanes);
                check_body(target, (ir_elem)elem, (ir_elem)elem, lanes, body);
            }
            int n = snprintf(body, sizeof body, "shuffle(x[i]$, y[i]$, [");
            for (int p = 0; p < lanes; p++)
                n += snprintf(body + n, sizeof body - (size_t)n, "%s%d", p ? ", " : "", (p * 5 + 3) % (2 * lanes));
            snprintf(body + n, sizeof body - (size_t)n, "])");
            check_body(target, (ir_elem)elem, (ir_elem)elem, lanes, body);
        }
        check_body(target, IR_F32, IR_I32, lanes, "bitcast.i32(x[i]$)");
        check_body(target, IR_I64, IR_F64, lanes, "bitcast.f64(x[i]$)");
        each_pair(target, lanes);
        each_four(target, lanes);
        if (lanes == 1) continue;
        snprintf(body, sizeof body, "ramp.x%d(x[i], y[i])", lanes);
        check_body(target, IR_I32, IR_I32, lanes, body);
        check_body(target, IR_IDX, IR_IDX, lanes, body);
        snprintf(body, sizeof body, "shuffle(shuffle(x[i]$, y[i]$, [%d]), z[i], [1, 0, 0, 1])", lanes + 1);
        if (lanes == 4) check_body(target, IR_F32, IR_F32, 4, body);
    }
}

/* ---- Accesses ---- */

static void each_access(const at_target *target) {
    static const ir_elem elems[] = {IR_F32, IR_F64, IR_I8, IR_BF16, IR_BOOL, IR_I32, IR_IDX};
    static const char *const frames[] = {
        /* masked, side by side: the last vector hangs over the end */
        "kernel @masked (x: %1$s[61] in, o: %1$s[61] out, n: idx) { assume n >= 0 assume n <= 61\n"
        " parallel for t in 0..n / %2$d + 1 { let m = (ramp.x%2$d(t * %2$d, 1) < splat.x%2$d(n))\n"
        "  o[t * %2$d]:x%2$d ? (m) = x[t * %2$d]:x%2$d ? (m) } }",
        /* lanes along a row: apart, by a stride that is known */
        "kernel @columns (x: %1$s[32, 16] in, o: %1$s[16, 32] out) {\n"
        " parallel for t in 0..16, u in 0..32 / %2$d { o[t, u * %2$d]:x%2$d = x[u * %2$d, t]:x%2$d @ 0 } }",
        /* apart by a stride that is not, in and out */
        "kernel @strided (x: %1$s[32, 8] strides [s, 1] in, o: %1$s[8, 32] strides [1, s] out, s: idx) {\n"
        " assume s >= 8 parallel for t in 0..8, u in 0..32 / %2$d {\n"
        "  o[t, u * %2$d]:x%2$d = x[u * %2$d, t]:x%2$d @ 0 } }",
        /* apart and masked */
        "kernel @masked_columns (x: %1$s[32, 16] in, o: %1$s[32, 16] out, c: bool[32] in) {\n"
        " parallel for t in 0..16, u in 0..32 / %2$d {\n"
        "  o[u * %2$d, t]:x%2$d @ 0 ? (c[u * %2$d]:x%2$d) = x[u * %2$d, t]:x%2$d @ 0 ? (not(c[u * %2$d]:x%2$d)) } }",
        /* gather */
        "kernel @gather (x: %1$s[64, 8] in, o: %1$s[8, 32] out) { parallel for t in 0..8, u in 0..32 / %2$d {\n"
        "  o[t, u * %2$d]:x%2$d = x[ramp.x%2$d(63 - u * %2$d, -1), t]:x%2$d } }",
        "kernel @masked_gather (x: %1$s[64, 8] in, o: %1$s[8, 32] out, c: bool[32] in) {\n"
        " parallel for t in 0..8, u in 0..32 / %2$d {\n"
        "  o[t, u * %2$d]:x%2$d = x[ramp.x%2$d(u * %2$d, 1), t]:x%2$d ? (c[u * %2$d]:x%2$d) } }",
        /* through scratch, shared memory and registers */
        "kernel @spaces (x: %1$s[8, 32] in, o: %1$s[8, 32] out) { alloc s: %1$s[8, 32] shared\n"
        " parallel for t in 0..8 { alloc a: %1$s[2, 32] scratch alloc r: %1$sx%2$d[3] reg\n"
        "  for u in 0..32 by %2$d { a[1, u]:x%2$d = x[t, u]:x%2$d }\n"
        "  for v in 0..32 by %2$d { r[2]:x%2$d = a[1, v]:x%2$d s[t, v]:x%2$d = r[2]:x%2$d } }\n"
        " parallel for t2 in 0..8 { for w in 0..32 { o[t2, w] = s[7 - t2, 31 - w] } } }",
    };
    static const int lanes[] = {2, 4, 8, 16};
    for (size_t f = 0; f < LENGTH(frames); f++)
        for (size_t t = 0; t < LENGTH(elems); t++)
            for (size_t l = 0; l < LENGTH(lanes); l++) {
                char text[TEXT_BYTES];
                const int64_t scalars[] = {29};
                memset(&initial, 0, sizeof initial);
                fill(elems[t], initial.bytes[0], 2);
                fill(elems[t], initial.bytes[1], 1);
                fill(IR_BOOL, initial.bytes[2], 2);
                snprintf(text, sizeof text, frames[f], ir_elem_get(elems[t])->name, lanes[l]);
                check_kernel(text, target, scalars, 3);
            }
}

/* ---- Statements and phases ---- */

static void each_statement(const at_target *target) {
    static const char *const texts[] = {
        /* a nest of parallel loops, cut anywhere */
        "kernel @nest (x: i32[a, b, 5] in, o: i32[a, b, 5] out, a: idx, b: idx) {\n"
        " assume a >= 0 assume b >= 0 parallel for i in 0..a, j in 0..b, k in 0..5 {\n"
        "  o[i, j, k] = x[i, j, k] * 3:i32 + cast.i32(i * 100 + j * 10 + k) } }",
        /* loops that may not run, that run once, whose ends are other loops' counters */
        "kernel @loops (x: f32[a, b] in, o: f32[a, b] out, a: idx, b: idx) {\n"
        " assume a >= 0 assume b >= 0 parallel for i in 0..a {\n"
        "  for j in 0..b { o[i, j] = 0.0 for k in j..min(b, j + 3) by 2 { o[i, j] = x[i, k] } }\n"
        "  for l in i..b { for m in 2..3 { o[i, l] = neg(x[i, max(0, min(m, b - 1))]) } }\n"
        "  for r in 0..b { for q in 5..5 { o[i, r] = 7.0 } } } }",
        /* branches, and a value let before them */
        "kernel @branches (x: i64[a, b] in, o: i64[a, b] out, a: idx, b: idx) {\n"
        " assume a >= 0 assume b >= 0 parallel for i in 0..a { for j in 0..b {\n"
        "  let v = x[i, j] if (v > 0:i64) & (j < 3) { let w = v * 5:i64 o[i, j] = w } else {\n"
        "   if i == j { o[i, j] = 1:i64 } else { o[i, j] = v - 1:i64 } }\n"
        "  if v == 7:i64 { o[i, j] = 9:i64 } } } }",
        /* registers that loops carry; scratch of blocks side by side */
        "kernel @sums (x: f32[a, b] in, o: f32[a, b] out, a: idx, b: idx) {\n"
        " assume a >= 0 assume b >= 1 parallel for i in 0..a { alloc s: f32[2] reg s[0] = 0.0 s[1] = 1.0\n"
        "  for j in 0..b { s[0] = s[0] + x[i, j] s[1] = s[1] * 0.5 prefetch x[i, 0] prefetch.far x[i, j] }\n"
        "  for k in 0..b { alloc p: f32[4] scratch p[k % 4] = s[0] o[i, k] = p[k % 4] }\n"
        "  for l in 0..b { alloc q: f32[4] scratch q[3] = s[1] if l % 2 == 0 { o[i, l] = q[3] } } } }",
        /* the rows of a tile, a stride known only at run time */
        "kernel @rows (x: i32[a, b] strides [b * 3, 1] in, o: i32[a, b] out, a: idx, b: idx) {\n"
        " assume a >= 1 assume b >= 1 parallel for i in 0..a - 5 { for j in 0..b {\n"
        "  o[i, j] = x[i, j] + x[i + 1, j] * 3:i32 + x[i + 2, j] * 5:i32 + x[i + 5, j] * 7:i32 + x[i + 3, j] * 11:i32\n"
        "   - x[i + 4, j] } } }",
        /* a let keeps its value when the memory that it was read from changes */
        "kernel @kept (x: i32[a, b] in, o: i32[a, b] out, a: idx, b: idx) {\n"
        " assume a >= 0 assume b >= 0 parallel for i in 0..a { for j in 0..b { alloc s: idx[2] scratch s[0] = j\n"
        "  let k = s[0] + 1 s[0] = 50 assume k >= 1 assume k <= b o[i, j] = x[i, k - 1] } } }",
        /* an innermost loop across the rows */
        "kernel @columns (x: i32[a, b] strides [b * 3, 1] in, o: i32[a, b] out, a: idx, b: idx) {\n"
        " assume a >= 1 assume b >= 1 parallel for i in 0..b { for j in 0..a by 2 { let k = j + 1\n"
        "  o[j, i] = x[j, i] if k < a { o[k, i] = x[k, i] * 3:i32 - x[k - 1, i] } } } }",
        /* arithmetic of addresses: products of scalars, differences, divisions */
        "kernel @addresses (x: i32[a, b] strides [b * 2, 2] in, o: i32[a, b] out, a: idx, b: idx) {\n"
        " assume a >= 1 assume b >= 1 parallel for i in 0..a { for j in 0..b {\n"
        "  let r = a - 1 - i assume r >= 0 o[i, j] = x[r, (b - 1) - j] + x[(i + j) % a, (j * 3 + i) % b]\n"
        "   + x[i * 2 / 2, j / 2] + cast.i32(min(i, j) * max(i - j, 2)) } } }",
    };
    static const int64_t rows[] = {0, 3, 7};
    for (size_t t = 0; t < LENGTH(texts); t++)
        for (size_t r = 0; r < LENGTH(rows); r++)
            for (int64_t range = 0; range < 4; range++) {
                const int64_t scalars[] = {rows[r], 6};
                if (rows[r] == 0 && strstr(texts[t], "a >= 1")) continue;
                memset(&initial, 0, sizeof initial);
                const ir_elem elem = strstr(texts[t], "x: f32") ? IR_F32 : strstr(texts[t], "x: i64") ? IR_I64 : IR_I32;
                fill(elem, initial.bytes[0], 2);
                check_kernel(texts[t], target, scalars, range);
            }
}

/* ---- Threads ---- */

static const char threads_source[] =
    "kernel @threads (x: f32[64] in, o: f32[64] out) { parallel for i in 0..8 {\n"
    " alloc a: f32x8[2] reg a[0] = splat.x8(0.0) a[1] = splat.x8(1.0)\n"
    " for j in 0..8 { a[0] = a[0] + x[j * 8]:x8 * splat.x8(x[i]) a[1] = max(a[1], x[j * 8]:x8) }\n"
    " o[i * 8]:x8 = a[0] / a[1] } }";

typedef struct compiled_image {
    void *data;
    size_t bytes;
    attune_status status;
} compiled_image;

static void *compile_one(void *argument) {
    compiled_image *image = argument;
    at_arena arena;
    at_error err = {0};
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = ir_parse(&arena, threads_source, strlen(threads_source), &err);
    image->status = err.status;
    if (kernel)
        image->status =
            cg_compile(kernel, at_target_find("avx2"), ATTUNE_STAGE_IMAGE, &image->data, &image->bytes, &err);
    at_arena_free(&arena);
    return NULL;
}

static void test_threads_compile_alike(void **state) {
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    compiled_image images[THREADS] = {{0}};
    for (int t = 0; t < THREADS; t++) assert_int_equal(pthread_create(&threads[t], NULL, compile_one, &images[t]), 0);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    for (int t = 0; t < THREADS; t++) {
        assert_int_equal(images[t].status, ATTUNE_OK);
        assert_int_equal(images[t].bytes, images[0].bytes);
        assert_memory_equal(images[t].data, images[0].data, images[0].bytes);
    }
    for (int t = 0; t < THREADS; t++) at_free(NULL, images[t].data);
}

/* ---- The frame of the tests ---- */

static void on_each_target(void (*check)(const at_target *target)) {
    for (const at_target *target = at_targets(); target->name; target++)
        if (target_is_tested(target)) check(target);
}

static void test_operators(void **state) { (void)state, on_each_target(each_operator); }
static void test_division(void **state) { (void)state, on_each_target(each_division); }
static void test_casts(void **state) { (void)state, on_each_target(each_cast); }
static void test_rearrangements(void **state) { (void)state, on_each_target(each_rearrangement); }
static void test_accesses(void **state) { (void)state, on_each_target(each_access); }
static void test_statements(void **state) { (void)state, on_each_target(each_statement); }

int main(void) {
    random_state = test_seed();
    if (!random_state) random_state = 1;
    const char *lanes = getenv("ATTUNE_TEST_LANES");
    if (lanes && strcmp(lanes, "few") == 0) take_few_lane_counts();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operators),
        cmocka_unit_test(test_division),
        cmocka_unit_test(test_casts),
        cmocka_unit_test(test_rearrangements),
        cmocka_unit_test(test_accesses),
        cmocka_unit_test(test_statements),
        cmocka_unit_test(test_threads_compile_alike),
    };
    cmocka_set_test_filter(getenv("ATTUNE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
