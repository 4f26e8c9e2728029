/* Builders and passes where memory ends: at some 60 places of each of many random problems, so that each builder meets
 * it between any two expressions. Nothing may look into what could not be made. */
#include "base/memory.h"
#include "check/check_case.h"
#include "ir/passes.h"
#include "operator/build.h"
#include "problem/mha.h"
#include "target/target.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 16 << 20, PLACES = 60 };
static const char *const targets[] = {"avx512_bf16", "avx2"};
enum { TARGETS = sizeof targets / sizeof *targets };

static void *no_memory(void *user, size_t bytes, size_t align) {
    (void)user, (void)bytes, (void)align;
    return NULL;
}

static void keep(void *user, void *pointer) { (void)user, (void)pointer; }

/* An arena with `left` bytes and no more. */
static at_arena arena_of(char *room, size_t left) {
    static const attune_allocator none = {no_memory, keep, NULL};
    at_arena arena;
    at_arena_init(&arena, &none);
    arena.end = room + ROOM;
    arena.cursor = arena.end - left / 16 * 16;
    return arena;
}

typedef struct subject {
    const check_case *c;
    attune_problem canonical;
    const at_target *target;
    char *room;
} subject;

static subject subject_of(const check_case *c, char *room) {
    subject s = {.c = c, .target = at_target_find(targets[c->isa]), .room = room};
    at_error err = {0};
    assert_int_equal(mha_canonicalize(&c->problem, &s.canonical, &err), ATTUNE_OK);
    return s;
}

static void assert_no_memory(const ir_kernel *kernel, const at_error *err) {
    assert_null(kernel);
    assert_int_equal(err->status, ATTUNE_OUT_OF_MEMORY);
}

static void build_in_less(const subject *s, tool_random *random) {
    at_arena arena = arena_of(s->room, ROOM);
    at_error err = {0};
    if (!mha_build(&arena, &s->canonical, &s->c->schedule, s->target, &err)) fail_msg("%s", err.message);
    const int64_t bytes = arena.cursor - s->room;
    for (int i = 0; i < PLACES; i++) {
        arena = arena_of(s->room, (size_t)tool_random_range(random, 0, bytes - 16));
        err = (at_error){0};
        assert_no_memory(mha_build(&arena, &s->canonical, &s->c->schedule, s->target, &err), &err);
    }
}

/* Passes have arenas of their own besides the kernel's, by its allocator: of which the first `chunks` are granted. */
static int chunks;

static void *few_chunks(void *user, size_t bytes, size_t align) {
    (void)user;
    return chunks-- > 0 ? at_alloc_aligned(NULL, bytes, align) : NULL;
}

static void release(void *user, void *pointer) {
    (void)user;
    at_free(NULL, pointer);
}

static void lower_in_less(const subject *s, tool_random *random) {
    static const attune_allocator few = {few_chunks, release, NULL};
    bool is_lowered = false;
    for (int granted = 0; !is_lowered; granted++) {
        at_arena arena = arena_of(s->room, ROOM);
        at_error err = {0};
        const ir_kernel *kernel = mha_build(&arena, &s->canonical, &s->c->schedule, s->target, &err);
        assert_non_null(kernel);
        at_arena_init(&arena, &few);
        chunks = granted;
        at_arena_alloc(&arena, (size_t)tool_random_range(random, 0, 1 << 16));
        kernel = ir_lower(kernel, s->target, NULL, NULL, &err);
        is_lowered = kernel != NULL;
        if (!is_lowered) assert_int_equal(err.status, ATTUNE_OUT_OF_MEMORY);
        at_arena_free(&arena);
    }
}

static void build_random(check_kind kind, int64_t count) {
    check_machine machine = {.num_isas = TARGETS};
    char *room = malloc(ROOM);
    assert_non_null(room);
    for (int i = 0; i < TARGETS; i++) {
        const tool_common common = {.target = targets[i]};
        machine.isas[i] = targets[i];
        machine.contexts[i][0] = machine.contexts[i][1] = machine.contexts[i][2] = tool_open_context(&common, 1, "");
        assert_non_null(machine.contexts[i][0]);
    }
    for (int64_t number = 0; number < count; number++) {
        tool_random random = {(uint64_t)number * 0xd1b54a32d192ed03u + (uint64_t)kind};
        check_case c;
        assert_true(check_draw(&machine, &random, kind, 4e6, &c));
        const subject s = subject_of(&c, room);
        build_in_less(&s, &random);
        lower_in_less(&s, &random);
    }
    for (int i = 0; i < TARGETS; i++) attune_context_destroy(machine.contexts[i][0]);
    free(room);
}

static void test_any_kind(void **state) {
    (void)state;
    build_random(CHECK_ALL_KINDS, 300);
}

static void test_functions(void **state) {
    (void)state;
    build_random(CHECK_FUNCTIONS, 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_kind),
        cmocka_unit_test(test_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
