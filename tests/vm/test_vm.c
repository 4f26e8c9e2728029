/* The virtual machine on small kernels, by every instruction set that runs here: the interpreter's bits. Random
 * problems are in test_vm_cli.sh. */
#include "ir/interp.h"
#include "ir/passes.h"
#include "ir/text.h"
#include "support/ir/jit_run.h"
#include "vm/vm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 256, OUTPUTS = 256 };

typedef struct data {
    _Alignas(64) float x[COUNT];
    _Alignas(64) uint16_t h[COUNT];
    _Alignas(64) int32_t table[COUNT];
    _Alignas(64) float y[OUTPUTS];
} data;

#define HEAD "kernel @t (n: idx, s: f32, x: f32[256] in, h: bf16[256] in, table: i32[256] in, y: f32[256] inout) {\n"

static void fill(data *d) {
    for (int i = 0; i < COUNT; i++) {
        d->x[i] = (float)(i * 37 % 101) / 16 - 3;
        d->h[i] = (uint16_t)(0x3f00 + i * 11 % 200);
        d->table[i] = i * 53 % 256;
        d->y[i] = (float)i;
    }
}

static void run_program(const at_vm_program *program, void *const *buffers, const int64_t *scalars) {
    int64_t plan[8];
    void *all[8];
    at_vm_plan(program, scalars, plan);
    const uint32_t num_phases = at_vm_num_phases(program), num_shared = at_vm_num_shared(program);
    memcpy(all, buffers, 4 * sizeof *all);
    for (uint32_t s = 0; s < num_shared; s++) all[4 + s] = at_alloc_aligned(NULL, (size_t)plan[num_phases + s], 64);
    for (uint32_t p = 0; p < num_phases; p++) {
        const at_vm_phase *phase = at_vm_phase_of(program, p);
        char *scratch = at_alloc_aligned(NULL, at_vm_scratch_bytes(phase), 64);
        memset(scratch, 0xa5, at_vm_scratch_bytes(phase));
        const int64_t half = plan[p] / 2;
        at_vm_run(phase, all, scalars, half, plan[p], scratch); /* in two ranges, the second one first */
        at_vm_run(phase, all, scalars, 0, half, scratch);
        at_free(NULL, scratch);
    }
    for (uint32_t s = 0; s < num_shared; s++) at_free(NULL, all[4 + s]);
}

static void check_on(const char *text, const at_target *target, int64_t n, float s) {
    static data vm, interpreter;
    at_arena arena;
    at_error err = {0};
    at_vm_program *program = NULL;
    at_arena_init(&arena, NULL);
    fill(&vm);
    fill(&interpreter);
    int64_t scalars[2] = {n, 0};
    memcpy(&scalars[1], &s, sizeof s);
    ir_kernel *kernel = ir_parse(&arena, text, strlen(text), &err);
    if (kernel) kernel = ir_lower(kernel, target, NULL, NULL, &err);
    if (!kernel || at_vm_translate(kernel, target, NULL, &program, &err)) fail_msg("%s: %s", target->name, err.message);
    run_program(program, (void *[]){vm.x, vm.h, vm.table, vm.y}, scalars);
    if (ir_interpret(kernel, (void *[]){interpreter.x, interpreter.h, interpreter.table, interpreter.y}, scalars, NULL,
                     &err))
        fail_msg("%s: %s", target->name, err.message);
    for (int i = 0; i < OUTPUTS; i++)
        if (memcmp(&vm.y[i], &interpreter.y[i], sizeof(float)))
            fail_msg("%s, n %d: y[%d] is %a, by the interpreter %a:\n%s", target->name, (int)n, i, (double)vm.y[i],
                     (double)interpreter.y[i], text);
    at_free(NULL, program);
    at_arena_free(&arena);
}

static void check(const char *text) {
    for (const at_target *target = at_targets(); target->name; target++)
        for (int64_t n = 0; target_can_run(target) && n <= 9; n += 3) check_on(text, target, n, 1.5f - (float)n);
}

/* ---- Control ---- */

static void loops_may_be_empty(void **state) {
    (void)state;
    check(HEAD "assume n >= 0\nassume n <= 9\nparallel for t in 0..n {\n"
               "for i in t..n by 2 { for j in i..4 { y[t * 16 + i + j] = x[i * 4 + j] } }\n"
               "for k in 7..3 { y[k] = s }\nfor one in 5..6 { y[200 + t + one] = s } } }");
}

static void branches_nest(void **state) {
    (void)state;
    check(HEAD "assume n >= 0\nassume n <= 9\nparallel for t in 0..16 {\n"
               "if t < n { if (t % 2) == 0 { y[t] = s } else { if t > 2 { y[t] = x[t] } } }\n"
               "else { y[t + 64] = select(x[t] > s, x[t], neg(x[t])) } } }");
}

static void a_let_lives_as_long_as_it_is_used(void **state) {
    (void)state;
    check(HEAD "parallel for t in 0..4 {\nlet a = x[t] * s\nlet b = a + 0x1p+0\n"
               "for one in 0..1 { y[t] = b }\nfor i in 0..3 { let c = a * x[i]\ny[t * 8 + i + 8] = c + b }\n"
               "y[t + 64] = a } }");
}

/* The last use lies inside of an operand, while the value is an operand before it already. */
static void a_place_is_given_away_after_all_operands(void **state) {
    (void)state;
    check(HEAD "parallel for t in 0..4 {\nlet a = x[t * 16]:x4 * splat.x4(s)\nlet b = x[t * 16 + 4]:x4\n"
               "y[t * 16]:x4 = a - cast.f32(cast.i32(b <= a))\n"
               "let c = b + splat.x4(s)\ny[t * 16 + 4]:x4 ? (cast.i32(b <= c) > splat.x4(0:i32)) = c\n"
               "let d = x[t]\nlet k = splat.x4(d)\n"
               "y[t * 16 + 8]:x4 = splat.x4(d) * cast.f32(cast.i32(splat.x4(d) < (k + b))) } }");
}

static void registers_of_indices(void **state) {
    (void)state;
    check(HEAD "assume n >= 0\nassume n <= 9\nparallel for t in 0..8 {\nalloc at: idx[] reg\nat[] = t\n"
               "for i in 0..4 { let now = at[]\nassume now >= 0\nassume now <= 200\ny[now] = x[i + t]\n"
               "at[] = now + 16 }\nalloc name: idx[] reg\nname[] = t + n\nlet k = name[]\nassume k >= 0\n"
               "assume k <= 17\ny[k + 100] = s } }");
}

static void phases_share_buffers(void **state) {
    (void)state;
    check(HEAD "assume n >= 0\nassume n <= 9\nalloc sums: f32[n + 1, 16] shared\n"
               "parallel for a in 0..n + 1, b in 0..16 { sums[a, b] = x[a * 16 + b] * s }\n"
               "parallel for c in 0..n { y[c]= sums[c + 1, c] + sums[c, 15] } }");
}

/* ---- Memory ---- */

static void masks_and_strides(void **state) {
    (void)state;
    check(HEAD "assume n >= 0\nassume n <= 9\nparallel for t in 0..4 {\n"
               "let mask = ramp.x8(0, 1) < splat.x8(n)\nlet v = x[t * 16]:x8 ? (mask)\n"
               "y[t * 16]:x8 = v + splat.x8(s)\ny[t * 16 + 8]:x8 ? (mask) = v * v\n"
               "alloc square: f32[4, 8] scratch\n"
               "for i in 0..4 { square[i, 0]:x8 = x[i * 8 + t]:x8 }\n"
               "for j in 0..8 { y[128 + t * 32 + j * 4]:x4 = square[0, j]:x4 @ 0 } } }");
}

static void gathers(void **state) {
    (void)state;
    check(HEAD "assume n >= 0\nassume n <= 9\nparallel for t in 0..4 {\n"
               "let mask = ramp.x8(0, 1) < splat.x8(n)\n"
               "y[t * 16]:x8 = x[ramp.x8(t, 3)]:x8 ? (mask)\ny[t * 16 + 8]:x8 = x[ramp.x8(t + 100, 2)]:x8 } }");
}

/* ---- Sums of products: tiles of odd sizes, in registers and in memory, of widened columns ---- */

#define TILE_HEAD HEAD "assume n >= 0\nassume n <= 9\nparallel for t in 0..2 {\nalloc sum: f32xN[3, 3] reg\n"

/* `text` with N replaced by the lanes of each target's registers. */
static void check_lanes(const char *text) {
    for (const at_target *target = at_targets(); target->name; target++) {
        if (!target_can_run(target)) continue;
        const bool fuses = target->flags & AT_TARGET_FMA;
        at_string lanes;
        at_string_init(&lanes, NULL);
        for (const char *c = text; *c; c++) {
            if (*c == 'N')
                at_string_printf(&lanes, "%d", target->vector_bytes / 4);
            else if (*c == 'F') /* F(x, y, z): fused where the target can */
                at_string_puts(&lanes, fuses ? "fma" : "");
            else if (*c == '|')
                at_string_puts(&lanes, fuses ? "," : *++c == '*' ? " *" : " +");
            else
                at_string_append(&lanes, c, 1);
            if (*c == '|') c++;
        }
        for (int64_t n = 0; n <= 9; n += 3) check_on(lanes.data, target, n, 1.5f - (float)n);
        at_string_free(&lanes);
    }
}

static void tiles_of_sums(void **state) {
    (void)state;
    at_string text;
    at_string_init(&text, NULL);
    at_string_puts(&text, TILE_HEAD);
    for (int i = 0; i < 9; i++) at_string_printf(&text, "sum[%d, %d] = splat.xN(s)\n", i / 3, i % 3);
    at_string_puts(&text, "for k in 0..n {\n");
    for (int c = 0; c < 3; c++) at_string_printf(&text, "let c%d = x[k * 4 + %d]:xN\n", c, c * 8);
    for (int r = 0; r < 3; r++) {
        at_string_printf(&text, "let r%d = splat.xN(x[t + k * 5 + %d])\n", r, r);
        for (int c = 0; c < 3; c++)
            at_string_printf(&text, "sum[%d, %d] = F(r%d |* c%d |+ sum[%d, %d])\n", r, c, r, c, r, c);
    }
    at_string_puts(&text, "}\n");
    for (int i = 0; i < 9; i++)
        at_string_printf(&text, "y[t * 9 + %d] = shuffle(sum[%d, %d], sum[%d, %d], [%d])\n", i, i / 3, i % 3, i / 3,
                         i % 3, i % 4);
    at_string_puts(&text, "} }");
    assert_false(text.failed);
    check_lanes(text.data);
    at_string_free(&text);
}

/* A run that is no loop: narrow columns, one of which is needed again, and sums in scratch by chains. */
static void runs_of_sums(void **state) {
    (void)state;
    check_lanes(HEAD "parallel for t in 0..2 {\nalloc sums: f32[2, N] scratch\n"
                     "sums[0, 0]:xN = splat.xN(s)\nsums[1, 0]:xN = x[t]:xN\n"
                     "let a = cast.f32(h[t * 8]:xN)\nlet b = cast.f32(h[t + 100]:xN)\n"
                     "let p = splat.xN(x[t])\nlet q = splat.xN(x[t + 1])\n"
                     "sums[0, 0]:xN = F(a |* p |+ F(b |* q |+ sums[0, 0]:xN))\n"
                     "sums[1, 0]:xN = F(a |* q |+ F(b |* p |+ sums[1, 0]:xN))\n"
                     "y[t * 32]:xN = sums[0, 0]:xN\ny[t * 32 + 16]:xN = sums[1, 0]:xN\n"
                     "y[t * 32 + 64]:xN = a } }");
}

/* ---- Values that are one operation ---- */

static void casts_and_shuffles(void **state) {
    (void)state;
    check(HEAD "parallel for t in 0..4 {\nlet a = x[t * 8]:x4\nlet b = cast.f32(h[t * 8]:x4)\n"
               "y[t * 4]:x4 = shuffle(a, b, [0, 5, 2, 7])\n"
               "let f = shuffle(a, a, [0, 1]) + shuffle(a, a, [2, 3])\n"
               "y[t + 32] = shuffle(f, f, [1]) + cast.f32(table[t])\n"
               "y[t * 4 + 64]:x4 = cast.f32(cast.bf16(a * splat.x4(s)))\n"
               "y[t * 4 + 96]:x4 = max(shuffle(a, b, [4, 1, 6, 3]), shuffle(a, b, [0, 5, 2, 7]))\n"
               "y[t * 4 + 128]:x4 = select(a < b, a, splat.x4(s)) } }");
}

static void polynomials(void **state) {
    (void)state;
    check(HEAD "parallel for t in 0..4 {\nlet a = x[t * 8]:x4\nlet p = exp2(a)\ny[t * 4]:x4 = p\n"
               "y[t * 4 + 32]:x4 = ((((splat.x4(0x1p+0) * a) + splat.x4(0x1p-1)) * a + splat.x4(0x1.8p+0)) * a) + "
               "splat.x4(0x1p+1) } }");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_may_be_empty),
        cmocka_unit_test(branches_nest),
        cmocka_unit_test(a_let_lives_as_long_as_it_is_used),
        cmocka_unit_test(a_place_is_given_away_after_all_operands),
        cmocka_unit_test(registers_of_indices),
        cmocka_unit_test(phases_share_buffers),
        cmocka_unit_test(masks_and_strides),
        cmocka_unit_test(gathers),
        cmocka_unit_test(casts_and_shuffles),
        cmocka_unit_test(polynomials),
        cmocka_unit_test(tiles_of_sums),
        cmocka_unit_test(runs_of_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
