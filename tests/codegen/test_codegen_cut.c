/* Kernels large enough to be cut into several functions and modules: the cuts, equality with the interpreter, and
 * images that do not depend on the processors at hand. */
#define _GNU_SOURCE
#include "codegen/compile.h"
#include "codegen/cut.h"
#include "ir/interp.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "support/ir/jit_run.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ACCUMULATORS = 24, ROWS = 64, TASKS = 3, ELEMENTS = TASKS * ACCUMULATORS * 8 };

typedef struct parsed {
    at_arena arena;
    at_string text;
    const ir_kernel *kernel;
    const at_target *target;
} parsed;

/* A nest that needs from outside a loop variable, a `let` of each sort, a scalar and memory of all spaces. */
static void write_nest(at_string *t, const char *name) {
    at_string_printf(t, "for n%s in 0..2 { alloc acc%s: f32x8[%d] reg\n", name, name, ACCUMULATORS);
    for (int i = 0; i < ACCUMULATORS; i++) at_string_printf(t, " acc%s[%d] = vector * splat.x8(s)\n", name, i);
    at_string_printf(t, " for r%s in 0..%d {\n", name, ROWS);
    for (int i = 0; i < ACCUMULATORS; i++)
        at_string_printf(t, "  acc%s[%d] = acc%s[%d] * x[r%s, 0]:x8 + tmp[%d, 0]:x8 * splat.x8(x[offset, %d])\n", name,
                         i, name, i, name, i, i % 8);
    at_string_printf(t, " }\n");
    for (int i = 0; i < ACCUMULATORS; i++)
        at_string_printf(t, " tmp[%d, 0]:x8 = select(splat.x8(odd), acc%s[%d], tmp[%d, 0]:x8 + splat.x8(number))\n", i,
                         name, i, i);
    at_string_printf(t, "}\n");
}

static void write_kernel(at_string *t) {
    at_string_printf(t, "kernel @large (x: f32[%d, 8] in, o: f32[%d, %d, 8] out, s: f32) {\n", ROWS, TASKS,
                     ACCUMULATORS);
    at_string_printf(t, "parallel for i in 0..%d {\n alloc tmp: f32[%d, 8] scratch\n", TASKS, ACCUMULATORS);
    at_string_printf(t,
                     " let offset = i * 7 let number = x[i, 0] let odd = i %% 2 == 1 let vector = x[offset, 0]:x8\n");
    at_string_printf(t, " for c in 0..%d { tmp[c, 0]:x8 = x[c, 0]:x8 }\n", ACCUMULATORS);
    write_nest(t, "a");
    write_nest(t, "b");
    at_string_printf(t, " for d in 0..%d { o[i, d, 0]:x8 = tmp[d, 0]:x8 }\n} }", ACCUMULATORS);
}

static void parse(parsed *p, const char *target) {
    at_error err = {0};
    at_arena_init(&p->arena, NULL);
    at_string_init(&p->text, NULL);
    write_kernel(&p->text);
    p->target = at_target_find(target);
    p->kernel = ir_parse(&p->arena, p->text.data, p->text.length, &err);
    if (!p->kernel || ir_verify(p->kernel, IR_LOWERED, p->target, &err)) fail_msg("%s\n%s", err.message, p->text.data);
}

static void free_parsed(parsed *p) {
    at_string_free(&p->text);
    at_arena_free(&p->arena);
}

static bool captures(const cg_nest *nest, const char *name) {
    for (uint32_t i = 0; i < nest->num_vars; i++)
        if (!strcmp(nest->vars[i]->name, name)) return true;
    return false;
}

static void test_large_nests_are_functions(void **state) {
    (void)state;
    static const char *const outside[] = {"offset", "number", "odd", "vector"};
    parsed p;
    at_error err = {0};
    cg_cut *cut;
    parse(&p, "avx2");
    assert_int_equal(cg_cut_kernel(p.kernel, &p.arena, &cut, &err), ATTUNE_OK);
    assert_int_equal(cut->num_modules, 2);
    assert_int_equal(cut->num_nests, 1); /* one is half of the kernel */
    const cg_nest *nest = &cut->nests[0];
    assert_int_not_equal(nest->module, cut->phase_module[0]);
    assert_ptr_equal(cg_cut_at(cut, nest->first), nest);
    assert_null(cg_cut_at(cut, p.kernel->phases->body.first));
    assert_int_equal(nest->num_vars, sizeof outside / sizeof *outside); /* s is a parameter of every function */
    for (size_t i = 0; i < nest->num_vars; i++) assert_true(captures(nest, outside[i]));
    cg_cut_join(cut);
    assert_int_equal(cut->num_modules, 1);
    assert_int_equal(nest->module, cut->phase_module[0]);
    free_parsed(&p);
}

static void test_small_kernels_are_whole(void **state) {
    (void)state;
    static const char text[] = "kernel @small (o: f32[64] out) { parallel for i in 0..64 { o[i] = 1.0 } }";
    at_arena arena;
    at_error err = {0};
    cg_cut *cut;
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = ir_parse(&arena, text, sizeof text - 1, &err);
    assert_int_equal(cg_cut_kernel(kernel, &arena, &cut, &err), ATTUNE_OK);
    assert_int_equal(cut->num_modules, 1);
    assert_int_equal(cut->num_nests, 0);
    at_arena_free(&arena);
}

static void run_on(const char *target) {
    float x[ROWS * 8], wanted[ELEMENTS], found[ELEMENTS], s = 0.75f;
    int64_t scalar = 0;
    parsed p;
    at_error err = {0};
    parse(&p, target);
    if (!target_can_run(p.target)) {
        free_parsed(&p);
        return;
    }
    for (int i = 0; i < ROWS * 8; i++) x[i] = (float)(i * 37 % 101) / 64.0f - 0.7f;
    memcpy(&scalar, &s, sizeof s);
    if (ir_interpret(p.kernel, (void *[]){x, wanted}, &scalar, NULL, &err)) fail_msg("interpreter: %s", err.message);
    if (jit_run(p.kernel, p.target, (void *[]){x, found}, &scalar, 1, &err)) fail_msg("machine code: %s", err.message);
    assert_memory_equal(wanted, found, sizeof wanted);
    free_parsed(&p);
}

static void test_they_compute_the_same(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++) run_on(target->name);
}

static void compile(const parsed *p, attune_stage stage, void **data, size_t *bytes) {
    at_error err = {0};
    if (cg_compile(p->kernel, p->target, stage, data, bytes, &err)) fail_msg("%s", err.message);
}

static void test_image_is_of_the_kernel_alone(void **state) {
    (void)state;
    void *many, *one;
    size_t many_bytes, one_bytes;
    cpu_set_t all, first;
    parsed p;
    parse(&p, "avx2");
    compile(&p, ATTUNE_STAGE_IMAGE, &many, &many_bytes);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&first);
    for (int cpu = 0; !CPU_COUNT(&first); cpu++)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &first);
    assert_int_equal(sched_setaffinity(0, sizeof first, &first), 0);
    compile(&p, ATTUNE_STAGE_IMAGE, &one, &one_bytes);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(many_bytes, one_bytes);
    assert_memory_equal(many, one, one_bytes);
    at_free(NULL, many);
    at_free(NULL, one);
    free_parsed(&p);
}

/* Text output is one module that has all functions. */
static void test_text_shows_all_functions(void **state) {
    (void)state;
    void *text;
    size_t bytes;
    parsed p;
    parse(&p, "avx2");
    compile(&p, ATTUNE_STAGE_LLVM, &text, &bytes);
    assert_non_null(strstr(text, "void @phase0("));
    assert_non_null(strstr(text, "define hidden void @phase0.0("));
    assert_non_null(strstr(text, "void @plan("));
    at_free(NULL, text);
    free_parsed(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_nests_are_functions), cmocka_unit_test(test_small_kernels_are_whole),
        cmocka_unit_test(test_they_compute_the_same),     cmocka_unit_test(test_image_is_of_the_kernel_alone),
        cmocka_unit_test(test_text_shows_all_functions),
    };
    cmocka_set_test_filter(getenv("ATTUNE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
