/* Refusals of the parser: malformed text, with its place and the expected token; text that is nested too deeply, cut
 * off or damaged; refused memory. No input can crash it. */
#include "ir/text.h"
#include "support/ir/ir_text_helpers.h"
#include "support/ir/random_ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static random_ir random_source;

static uint64_t random_bits(void) { return random_ir_bits(&random_source); }

static void seed_random(void) {
    random_source.state = 20240607;
    print_message("seed %llu\n", (unsigned long long)random_source.state);
}

/* Parses `text` and demands a failure; the message stays in *err. */
static void parse_failing(const char *text, size_t length, at_error *err) {
    at_arena arena;
    at_arena_init(&arena, NULL);
    *err = (at_error){0};
    if (ir_parse(&arena, text, length, err)) fail_msg("accepted: %.200s", text);
    assert_int_equal(err->status, ATTUNE_INVALID_IR);
    at_arena_free(&arena);
}

/* "$" stands for a kernel's head and a phase around the rest, so that the rest begins at line 2, column 1. */
static const struct {
    const char *text, *message;
} malformed[] = {
    {"", "1:1: expected 'kernel', found the end of the text"},
    {"colonel", "1:1: expected 'kernel', found 'colonel'"},
    {"kernel scale", "1:8: expected '@', found 'scale'"},
    {"kernel @ (", "1:10: expected the kernel's name, found '('"},
    {"kernel @k {", "1:11: expected '(', found '{'"},
    {"kernel @k (n) {", "1:13: expected ':', found ')'"},
    {"kernel @k (n: int) {", "1:15: expected a type such as f32, found 'int'"},
    {"kernel @k (n: bf16) {", "1:12: scalar parameter 'n' cannot be bf16, only idx, i32, i64, f32 or f64"},
    {"kernel @k (n: idx, n: idx) {", "1:20: the name 'n' is already taken"},
    {"kernel @k (for: idx) {", "1:12: 'for' is a word of the language and cannot be a name"},
    {"kernel @k (x: f32[4]) {", "1:21: expected 'in', 'out' or 'inout', found ')'"},
    {"kernel @k (x: f32x8[4] in) {", "1:15: only elements of reg buffers can be vectors"},
    {"kernel @k (x: f32[4, 4] strides [1] in) {", "1:25: 1 strides for 2 dimensions"},
    {"kernel @k (x: f32[m] in) {", "1:19: 'm' is not defined"},
    {"kernel @k (x: f32[1,1,1,1,1,1,1,1,1] in) {", "1:35: more than 8 dimensions"},
    {"kernel @k () {\n}", "2:1: expected 'parallel', found '}'"},
    {"kernel @k () {\nparallel for i in 1..4 {", "2:19: a parallel loop begins at 0"},
    {"kernel @k () {\nalloc s: f32[4] scratch", "2:17: expected 'shared', found 'scratch'"},
    {"kernel @k () { parallel for i in 0..4 { } } kernel", "1:45: expected the end of the text, found 'kernel'"},
    {"kernel @k () { assume 1", "1:16: an assumption must be bool, not idx"},
    {"$x[0] = 0.0", "2:11: expected a statement or '}', found the end of the text"},
    {"$x = 0.0", "2:3: expected '[', found '='"},
    {"$i = 0", "2:1: expected a statement or '}', found 'i'"},
    {"$z[0] = 0.0", "2:1: 'z' is not defined"},
    {"$x[0, 0] = 0.0", "2:1: 'x' takes 1 indices, not 2"},
    {"$x[0] = 0", "2:1: a store to 'x' needs f32, not idx"},
    {"$x[0] = 0.0 +", "2:13: expected an operand, found the end of the text"},
    {"$x[0] = 1.0 + 1", "2:12: '+' needs operands of one type, not f32 and idx"},
    {"$x[0] = 1.0 % 1.0", "2:12: '%' does not take f32"},
    {"$x[0] = - 1.0", "2:8: expected an operand, found '-' (negation is neg(…), a negative number has no space)"},
    {"$x[0]:y8 = 1.0", "2:6: expected lanes such as x8, found 'y8'"},
    {"$x[0]:x3 = 1.0", "2:1: 3 lanes: must be a power of two, at most 64"},
    {"$x[0]:x8 @1 = splat.x8(1.0)", "2:1: 'x' has no dimension 1 to run lanes along"},
    {"$x[0] ? (1) = 1.0", "2:1: a mask must be bool, not idx"},
    {"$x[ramp.x8(0, 1)]:x8 = splat.x8(1.0)", "2:1: a store to 'x' cannot have a vector as index"},
    {"$let a = 9223372036854775808", "2:9: the integer is out of range"},
    {"$let a = 99999999999999999999", "2:9: the integer is out of range"},
    {"$let a = 2147483648:i32", "2:9: 2147483648 is out of range for i32"},
    {"$let a = 7:f32", "2:11: expected idx, i32 or i64, found 'f32'"},
    {"$let a = 7:idxx4", "2:11: expected idx, i32 or i64, found 'idxx4'"},
    {"$let a = 1e39", "2:9: the literal is out of range"},
    {"$let a = 1e-400:f64", "2:9: the literal is out of range"},
    {"$let a = 0x1.0000001p0", "2:9: the literal is not exact in f32"},
    {"$let a = 0x1p-1075:f64", "2:9: the literal is not exact in f64"},
    {"$let a = 0x1p99999999999999999999", "2:9: the literal is out of range"},
    {"$let a = 0xff", "2:9: a hexadecimal number is a float and needs digits and an exponent 'p…'"},
    {"$let a = 1e", "2:9: an exponent needs digits"},
    {"$let a = 12n", "2:9: a number runs into a name"},
    {"$let a = 1.0:f16", "2:13: expected f32 or f64, found 'f16'"},
    {"$let i = 1", "2:5: the name 'i' is already taken"},
    {"$let min = 1", "2:5: expected a name, found 'min'"},
    {"$let a = a", "2:9: 'a' is not defined"},
    {"$let a = x", "2:10: expected '[', found the end of the text"},
    {"$let a = by", "2:9: expected an operand, found 'by'"},
    {"$let a = $", "2:9: a character that means nothing here"},
    {"$let a = !true", "2:9: '!' is only part of '!='"},
    {"$let a = (1", "2:11: expected ')', found the end of the text"},
    {"$let a = min(1)", "2:14: expected ',', found ')'"},
    {"$let a = min(1, 2, 3)", "2:17: expected ')', found ','"},
    {"$let a = splat(1.0)", "2:9: 'splat' needs its lanes after a dot, as in splat.x8(…)"},
    {"$let a = splat.f32(1.0)", "2:15: expected lanes such as x8, found 'f32'"},
    {"$let a = cast.x8(1.0)", "2:14: expected an element such as f32, found 'x8'"},
    {"$let a = cast.bool(1.0)", "2:9: 'cast' does not go from f32 to bool"},
    {"$let a = bitcast.i64(1.0)", "2:9: 'bitcast' goes between f32 and i32, f64 and i64, bf16x2n, f8x4n or i8x4n and "
                                  "i32xn, i8x2n and f16xn, not from f32 to i64"},
    {"$let a = pack2(1.0, 1)", "2:9: 'pack2' takes two f32xn, n at most 32, not f32 and idx"},
    {"$let a = shuffle(1.0, 2.0, [2])", "2:9: 'shuffle' picks lane 2 of 2"},
    {"$let a = shuffle(1.0, 2.0, [0, 1, 0])", "2:9: 3 lanes: must be a power of two, at most 64"},
    {"$let a = shuffle(1.0, 2.0, [])", "2:28: expected an integer, found ']'"},
    {"$let a = shuffle(1.0, 2.0, [256])", "2:28: 'shuffle' picks a lane above 64"},
    {"$let a = select(1, 2, 3)", "2:9: the condition of 'select' must be bool, not idx"},
    {"$let a = dot2(1.0, 1.0, 1.0)", "2:9: 'dot2' takes bf16x2n, bf16x2n and f32xn, not f32, f32 and f32"},
    {"$let a = dot4(1:i32, 1:i32, 1:i32)", "2:9: 'dot4' takes i8x4n, i8x4n and i32xn, not i32, i32 and i32"},
    {"$let a = dot4(bitcast.i8(1:i32), bitcast.i8(1:i32), splat.x2(1:i32))",
     "2:9: 'dot4' takes i8x4n, i8x4n and i32xn, not i8x4, i8x4 and i32x2"},
    {"$let a = lookup(bitcast.i8(1:i32), bitcast.i8(1:i32), bitcast.i8(1:i32))",
     "2:9: 'lookup' takes i8xn, i8xn and i8xn, n being 16 or more, or f32xn, f32xn and i32xn, n being 4, 8 or 16, not "
     "i8x4, i8x4 and i8x4"},
    {"$let a = lookup(splat.x16(1:i32), splat.x16(1:i32), splat.x16(1:i32))",
     "2:9: 'lookup' takes i8xn, i8xn and i8xn, n being 16 or more, or f32xn, f32xn and i32xn, n being 4, 8 or 16, not "
     "i32x16, i32x16 and i32x16"},
    {"$let a = lookup(splat.x32(1.0), splat.x32(1.0), splat.x32(1:i32))",
     "2:9: 'lookup' takes i8xn, i8xn and i8xn, n being 16 or more, or f32xn, f32xn and i32xn, n being 4, 8 or 16, not "
     "f32x32, f32x32 and i32x32"},
    {"$let a in 0..4 1", "2:15: expected '=', found '1'"},
    {"$let a in 0, 4 = 1", "2:11: expected '..', found ','"},
    {"$let a in 0..1.0 = 1", "2:5: the end of an interval must be idx, not f32"},
    {"$let a in true..4 = 1", "2:5: the start of an interval must be idx, not bool"},
    {"$let a in 0..4 = 1.0", "2:5: a value in an interval must be idx, not f32"},
    {"$let a in 0..a = 1", "2:13: 'a' is not defined"},
    {"$for i in 0..4 { }", "2:5: the name 'i' is already taken"},
    {"$for j in 0..4 by 0 { }", "2:5: the step of a loop must be at least 1, not 0"},
    {"$for j in 0..4 by n { }", "2:18: expected an integer, found 'n'"},
    {"$for j in 0, 4 { }", "2:11: expected '..', found ','"},
    {"$for j in 0..4 { } x[j] = 0.0", "2:21: 'j' is not visible here: its block has ended"},
    {"$if 1 { }", "2:1: the condition of 'if' must be bool, not idx"},
    {"$if true { ", "2:11: expected a statement or '}', found the end of the text"},
    {"$else { }", "2:1: expected a statement or '}', found 'else'"},
    {"$alloc r: f32x8[4] scratch", "2:7: 'r' holds scalars; only reg holds vectors such as f32x8"},
    {"$alloc r: f32[0] reg", "2:7: 'r' has a dimension of 0"},
    {"$alloc r: f32[n] reg", "2:14: expected an integer, found 'n'"},
    {"$alloc r: f32[9000000000, 9000000000] scratch", "2:7: the size of 'r' overflows"},
    {"$alloc r: f32x128[1] reg", "2:10: expected a type such as f32, found 'f32x128'"},
    {"$alloc r: f32[4]", "2:16: expected 'scratch', 'reg' or 'tiles', found the end of the text"},
    {"$alloc r: f32x8[4] reg r[0]:x4 = 0.0",
     "2:23: an element of 'r' is f32x8 and is accessed whole and without a mask"},
    {"$prefetch 4", "2:10: expected a buffer, found '4'"},
    {"$assume n", "2:1: an assumption must be bool, not idx"},
};

static void malformed_text_is_refused(void **state) {
    (void)state;
    static const char head[] = "kernel @k (x: f32[n] inout, n: idx) { parallel for i in 0..n {\n";
    int wrong = 0;
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        char text[512];
        const char *body = malformed[i].text;
        snprintf(text, sizeof text, "%s%s", *body == '$' ? head : "", *body == '$' ? body + 1 : body);
        at_error err;
        parse_failing(text, strlen(text), &err);
        if (!strcmp(err.message, malformed[i].message)) continue;
        print_error("%s\n  got      %s\n  expected %s\n", body, err.message, malformed[i].message);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

/* Some text repeated n times between two others. */
static char *repeat(const char *before, const char *part, int n, const char *after) {
    const size_t each = strlen(part), head = strlen(before);
    char *text = malloc(head + each * (size_t)n + strlen(after) + 1);
    memcpy(text, before, head);
    for (int i = 0; i < n; i++) memcpy(text + head + each * (size_t)i, part, each);
    strcpy(text + head + each * (size_t)n, after);
    return text;
}

static void nesting_is_bounded(void **state) {
    (void)state;
    static const char head[] = "kernel @k (x: f32[9] inout, n: idx) { parallel for i in 0..n {\n";
    static const struct {
        const char *part, *message;
    } cases[] = {
        {"(", "an expression is nested more than 200 deep"},
        {"neg(", "an expression is nested more than 200 deep"},
        {"x[", "an expression is nested more than 200 deep"},
        {"n - n * ", "an expression is nested more than 200 deep"},
        {"if true {", "blocks are nested more than 200 deep"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool expression = i < 4;
        char before[128];
        snprintf(before, sizeof before, "%s%s", head, expression ? "let a = " : "");
        char *text = repeat(before, cases[i].part, 100000, expression ? "n" : "");
        at_error err;
        parse_failing(text, strlen(text), &err);
        assert_non_null(strstr(err.message, cases[i].message));
        free(text);
    }
}

/* ---- hostile text ---- */

/* Parses text of any kind; accepted text must survive a round trip. */
static bool parse_anything(const char *text, size_t length) {
    at_arena arena;
    at_arena_init(&arena, NULL);
    at_error err = {0};
    const ir_kernel *kernel = ir_parse(&arena, text, length, &err);
    if (kernel)
        assert_round_trip(kernel);
    else
        assert_int_equal(err.status, ATTUNE_INVALID_IR);
    at_arena_free(&arena);
    return kernel;
}

/* In a block of exactly its length, so that a sanitizer sees any read past it. */
static bool parse_exact(const char *text, size_t length) {
    char *copy = malloc(length ? length : 1);
    memcpy(copy, text, length);
    const bool accepted = parse_anything(copy, length);
    free(copy);
    return accepted;
}

static void truncated_text_is_refused(void **state) {
    (void)state;
    size_t length;
    char *text = read_whole_text("examples/ir/matmul.air", &length);
    while (length && text[length - 1] == '\n') length--;
    assert_true(parse_exact(text, length));
    for (size_t n = 0; n < length; n++) assert_false(parse_exact(text, n));
    free(text);
}

static void damaged_text_is_harmless(void **state) {
    (void)state;
    seed_random();
    static const char alphabet[] = "0123456789abxn_.,:;()[]{}<>=+-*/%&|^!?@# \n\t\"$\x80";
    size_t length;
    char *text = read_whole_text("examples/ir/softmax_rows.air", &length);
    int accepted = 0;
    for (int i = 0; i < 3000; i++) {
        char *copy = malloc(length);
        memcpy(copy, text, length);
        for (uint64_t k = 0, n = 1 + random_bits() % 3; k < n; k++)
            copy[random_bits() % length] = alphabet[random_bits() % (sizeof alphabet - 1)];
        accepted += parse_anything(copy, length);
        free(copy);
    }
    print_message("%d of 3000 damaged texts still parse\n", accepted);
    free(text);
}

/* ---- refused memory ---- */

typedef struct limited {
    int left;
} limited;

static void *limited_alloc(void *user, size_t bytes, size_t align) {
    limited *limit = user;
    return limit->left-- > 0 ? aligned_alloc(align, (bytes + align - 1) / align * align) : NULL;
}

static void limited_free(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

static void refused_memory_is_reported(void **state) {
    (void)state;
    char *text = repeat("kernel @k (x: f32[9] inout) { parallel for i in 0..9 {\n", "x[i] = fma(x[i], x[i], x[8]) ",
                        2000, "} }");
    bool done = false;
    int refused = 0;
    for (; !done; refused++) {
        limited limit = {refused};
        const attune_allocator allocator = {limited_alloc, limited_free, &limit};
        at_arena arena;
        at_arena_init(&arena, &allocator);
        at_error err = {0};
        const ir_kernel *kernel = ir_parse(&arena, text, strlen(text), &err);
        assert_int_equal(err.status, kernel ? ATTUNE_OK : ATTUNE_OUT_OF_MEMORY);
        done = kernel;
        at_arena_free(&arena);
    }
    assert_true(refused > 5);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_text_is_refused),  cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(truncated_text_is_refused),  cmocka_unit_test(damaged_text_is_harmless),
        cmocka_unit_test(refused_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
