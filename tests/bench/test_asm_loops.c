/* Loops found in assembly, and their instructions told apart. */
#include "measure/asm_loops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static asm_loop loops[8];

static size_t find(const char *text) {
    static char copy[4096];
    snprintf(copy, sizeof copy, "%s", text);
    return asm_find_loops(copy, loops, 8);
}

static void assert_counts(const asm_loop *loop, const size_t expected[ASM_CLASSES]) {
    for (int c = 0; c < ASM_CLASSES; c++)
        if (loop->count[c] != expected[c])
            fail_msg("%s: %zu, expected %zu", asm_class_name((asm_class)c), loop->count[c], expected[c]);
}

static void an_x86_loop(void **state) {
    (void)state;
    assert_int_equal(find("phase0:\n\tpushq\t%rbp\n"
                          ".LBB0_1:\n"
                          "\tvmovups\t(%rax), %zmm0\n"                    /* load */
                          "\tvbroadcastss\t4(%rcx), %zmm1\n"              /* broadcast, load */
                          "\tvfmadd231ps\t%zmm0, %zmm1, %zmm2\n"          /* multiply */
                          "\tvdpbf16ps\t8(%rcx){1to16}, %zmm3, %zmm4\n"   /* multiply, load */
                          "\tvfmadd231ps\t64(%rsp), %zmm1, %zmm2 {%k1}\n" /* multiply, spill */
                          "\tvmovaps\t%zmm2, 128(%rsp)\n"                 /* spill */
                          "\tvmovups\t%zmm2, (%rdx)\n"                    /* store */
                          "\tvmovups\t%zmm2, (%rdx) {%k1}\n"              /* store */
                          "\tvpermt2ps\t%zmm5, %zmm6, %zmm7\n"            /* shuffle */
                          "\tvcvtph2ps\t(%rsi), %zmm8\n"                  /* convert, load */
                          "\tvcvtps2ph\t$4, %zmm0, (%rax)\n"              /* store */
                          "\tvpmovdw\t%zmm0, 32(%rax)\n"                  /* store */
                          "\tvmaxps\t%zmm1, %zmm2, %zmm3\n"               /* vector */
                          "\tprefetcht0\t(%rsi,%rax)\n"                   /* scalar */
                          "\taddq\t$64, %rax\n"                           /* scalar */
                          "\tjne\t.LBB0_1\n"                              /* scalar */
                          "\tretq\n"),
                     1);
    assert_string_equal(loops[0].function, "phase0");
    assert_int_equal(loops[0].instructions, 16);
    assert_int_equal(loops[0].accumulators, 2); /* zmm2, twice, and zmm4 */
    assert_counts(&loops[0], (size_t[ASM_CLASSES]){[ASM_MULTIPLY] = 3,
                                                   [ASM_LOAD] = 4,
                                                   [ASM_STORE] = 4,
                                                   [ASM_BROADCAST] = 1,
                                                   [ASM_SHUFFLE] = 1,
                                                   [ASM_CONVERT] = 1,
                                                   [ASM_VECTOR] = 1,
                                                   [ASM_SCALAR] = 3,
                                                   [ASM_SPILL] = 2});
}

static void an_aarch64_loop(void **state) {
    (void)state;
    assert_int_equal(find("phase1:\n"
                          ".LBB1_3:\n"
                          "\tldr\tq1, [x3], #16\n"          /* load */
                          "\tld1r\t{ v2.4s }, [x4]\n"       /* broadcast, load */
                          "\tfmla\tv0.4s, v1.4s, v2.s[1]\n" /* multiply */
                          "\tstp\tq0, q1, [x5]\n"           /* store */
                          "\tldr\tq7, [sp, #32]\n"          /* spill */
                          "\ttrn1\tv3.4s, v1.4s, v2.4s\n"   /* shuffle */
                          "\tfmax\tv3.4s, v1.4s, v2.4s\n"   /* vector */
                          "\tadd\tx3, x3, #16\n"            /* scalar */
                          "\tb.lt\t.LBB1_3\n"),             /* scalar */
                     1);
    assert_int_equal(loops[0].accumulators, 1);
    assert_counts(&loops[0], (size_t[ASM_CLASSES]){[ASM_MULTIPLY] = 1,
                                                   [ASM_LOAD] = 2,
                                                   [ASM_STORE] = 1,
                                                   [ASM_BROADCAST] = 1,
                                                   [ASM_SHUFFLE] = 1,
                                                   [ASM_VECTOR] = 1,
                                                   [ASM_SCALAR] = 2,
                                                   [ASM_SPILL] = 1});
}

static void only_innermost_loops_and_the_busiest_first(void **state) {
    (void)state;
    assert_int_equal(find("phase0:\n"
                          ".LBB0_1:\n"
                          ".LBB0_2:\n\tvmulps\t%ymm0, %ymm1, %ymm2\n\tjne\t.LBB0_2\n"
                          ".LBB0_3:\n\tvmulps\t%ymm0, %ymm1, %ymm2\n\tvmulps\t%ymm0, %ymm1, %ymm2\n\tjne\t.LBB0_3\n"
                          "\tjne\t.LBB0_1\n"
                          "\tjmp\t.LBB0_9\n"
                          ".LBB0_9:\n\tretq\n"
                          "phase1:\n"
                          ".LBB1_1:\n\tvmulps\t%ymm0, %ymm1, %ymm2\n\tvaddps\t%ymm0, %ymm1, %ymm2\n\tjne\t.LBB1_1\n"),
                     3);
    assert_int_equal(loops[0].count[ASM_MULTIPLY], 2);
    assert_string_equal(loops[1].function, "phase1"); /* as many multiplications, but longer */
    assert_string_equal(loops[2].function, "phase0");
    char nothing[] = "phase0:\n\tretq\n";
    assert_int_equal(asm_find_loops(nothing, loops, 8), 0);
}

/* LLVM's comments name the IR's loops, and say which lie in which: only those are loops that it calls so. */
static void loops_have_names(void **state) {
    (void)state;
    static const char *const marks[] = {"#", "//"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        char text[2048];
        const char *const m = marks[i];
        snprintf(text, sizeof text,
                 "phase0:   %s @phase0\n"
                 "%s %%bb.0:   %s %%entry\n"
                 ".LBB0_7:  %s %%after\n"
                 "   %s in Loop: Header=BB0_3 Depth=1\n"
                 "\tvmulps\t%%ymm0, %%ymm1, %%ymm2\n"
                 ".LBB0_3:  %s %%chunk.2\n"
                 "   %s =>This Loop Header: Depth=1\n"
                 "\tvmulps\t%%ymm0, %%ymm1, %%ymm2\n"
                 ".LBB0_4:  %s %%j.1\n"
                 "   %s   Parent Loop BB0_3 Depth=1\n"
                 "   %s =>  This Inner Loop Header: Depth=2\n"
                 "\tvmulps\t%%ymm0, %%ymm1, %%ymm2  %s ymm2 = mem[0]\n"
                 "\tjne\t.LBB0_4\n"
                 "\tjmp\t.LBB0_7\n"
                 ".LBB0_5:  %s %%value_tile\n"
                 "   %s =>This Inner Loop Header: Depth=1\n"
                 "\tvmulps\t%%ymm0, %%ymm1, %%ymm2\n"
                 "\tvmulps\t%%ymm0, %%ymm1, %%ymm2\n"
                 "\tjne\t.LBB0_5\n"
                 ".LBB0_6:  %s %%jump\n"
                 "   %s =>This Inner Loop Header: Depth=1\n"
                 "\tjne\t.LBB0_6\n",
                 m, m, m, m, m, m, m, m, m, m, m, m, m, m, m);
        assert_int_equal(find(text), 3);
        assert_string_equal(loops[0].function, "phase0");
        assert_string_equal(loops[0].name, "values");
        assert_string_equal(loops[1].name, "softmax");
        assert_int_equal(loops[1].instructions, 2);
        assert_int_equal(loops[1].count[ASM_LOAD], 0);
        assert_string_equal(loops[2].name, "");
    }
}

/* A loop over keys whose sum over d is unrolled away: its lanes are added at the end, those of a sum of values are not.
 */
static void sums_of_lanes_are_scores(void **state) {
    (void)state;
    static const char head[] = "phase0:   # @phase0\n"
                               ".LBB0_1:  # %i.2\n"
                               "   # =>This Inner Loop Header: Depth=1\n"
                               "\tvmulps\t%ymm0, %ymm1, %ymm2\n",
                      tail[] = "\tjne\t.LBB0_1\n";
    static const char *const sums[] = {"\tvhaddps\t%ymm2, %ymm2, %ymm2\n", "\tvmovshdup\t%xmm2, %xmm3\n",
                                       "\tfaddp\tv0.4s, v1.4s, v2.4s\n", ""};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s%s", head, sums[i], tail);
        assert_int_equal(find(text), 1);
        assert_string_equal(loops[0].name, *sums[i] ? "scores" : "values");
        assert_int_equal(loops[0].accumulators, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_x86_loop),
        cmocka_unit_test(an_aarch64_loop),
        cmocka_unit_test(only_innermost_loops_and_the_busiest_first),
        cmocka_unit_test(loops_have_names),
        cmocka_unit_test(sums_of_lanes_are_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
