/* Generated code under AddressSanitizer: only by `make asan-jit`, where the code generator instruments every access.
 * Kernels that lie to the prover must be caught, or the rest of this test would show nothing; then attention of every
 * sort runs on heap buffers that end where their tensors end. */
#define _GNU_SOURCE
#include <attune.h>

#include "support/calls.h"
#include "support/engine/contexts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef __SANITIZE_ADDRESS__
#error "this test is built by make asan-jit"
#endif

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* In process: the code calls the sanitizer of the process that generated it. For the same reason nothing is cached. */
static attune_context *open_context(const char *isa) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.compile_mode = ATTUNE_COMPILE_IN_PROCESS;
    options.cache_dir = "";
    options.isa = isa;
    return test_context(&options, NULL);
}

/* ---- In a process of its own ---- */

typedef int apart_fn(const void *what, int64_t n);

/* The output of fn to stderr, and its return value, or the sanitizer's. */
static int run_apart(apart_fn *fn, const void *what, int64_t n, char *output, size_t capacity) {
    int ends[2], status = 0;
    size_t length = 0;
    ssize_t got;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        _exit(fn(what, n));
    }
    close(ends[1]);
    while ((got = read(ends[0], output + length, capacity - 1 - length)) > 0) length += (size_t)got;
    output[length] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static char output[1 << 16];

static bool was_reported(int code, const char *access) {
    return code && strstr(output, "heap-buffer-overflow") && strstr(output, access);
}

/* ---- Kernels that lie ---- */

enum { N = 100 }; /* elements of x and of o */

/* x and o have n = N elements. `at` is where the body begins, `last` the last value of it that is honest. */
typedef struct lie {
    const char *name, *assume, *body, *report;
    int64_t last;
} lie;

static const lie lies[] = {
    {"a load of one element", "at < n", "o[0] = x[at]", "READ of size 4", N - 1},
    {"a store of one element", "at < n", "o[at] = x[0]", "WRITE of size 4", N - 1},
    {"the last lane of a load", "at + 8 <= n", "o[0]:x8 = x[at]:x8", "READ of size 32", N - 8},
    {"the last lane of a store", "at + 8 <= n", "o[at]:x8 = x[0]:x8", "WRITE of size 32", N - 8},
    {"a lane that its mask lets through", "at <= n", "o[0]:x8 = x[96]:x8 ? (ramp.x8(96, 1) < splat.x8(at))",
     "READ of size 4", N},
    {"a masked store", "at <= n", "o[96]:x8 ? (ramp.x8(96, 1) < splat.x8(at)) = x[0]:x8", "WRITE of size 4", N},
};

static int run_lie(const void *what, int64_t at) {
    const lie *const l = what;
    char text[1024];
    snprintf(text, sizeof text,
             "kernel @lie (x: f32[n] inout, o: f32[n] inout, n: idx, at: idx) {\n  assume n >= %d\n  assume at >= 0\n"
             "  parallel for t in 0..1 {\n    assume %s\n    %s\n  }\n}\n",
             N, l->assume, l->body);
    attune_context *const context = open_context(NULL);
    attune_kernel *kernel = NULL;
    if (attune_ir_compile(context, text, &kernel)) {
        fprintf(stderr, "%s\n%s", attune_last_message(), text);
        return 2;
    }
    float *const x = calloc(N, sizeof *x), *const o = calloc(N, sizeof *o);
    void *const buffers[] = {x, o};
    const int64_t scalars[] = {N, at};
    const attune_status status =
        x && o ? attune_ir_run(context, kernel, ATTUNE_ENGINE_JIT, buffers, scalars) : ATTUNE_OUT_OF_MEMORY;
    free(x);
    free(o);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return status ? 3 : 0;
}

static void lies_are_caught(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(lies); i++) {
        const lie *const l = &lies[i];
        if (run_apart(run_lie, l, l->last, output, sizeof output)) fail_msg("%s, in bounds: %s", l->name, output);
        const int code = run_apart(run_lie, l, l->last + 1, output, sizeof output);
        if (!was_reported(code, l->report))
            fail_msg("%s, one element beyond the end: ended with %d and said: %s", l->name, code, output);
    }
}

/* ---- Attention on the heap ---- */

/* Beside one of every sort: larger ones, in which tiles, chunks and rests of them all occur. */
static const sample larger[] = {
    /* Sizes that are multiples of nothing, and every mask. */
    {"num_heads=3,seq_q=37,seq_kv=41,head_dim=7,head_dim_v=19,has_lse=1"},
    {"batch=2,num_heads=6,num_kv_heads=2,seq_q=13,seq_kv=29,head_dim=17,is_causal=1,causal_align=bottom_right"},
    {"num_heads=2,seq_q=50,head_dim=40,layout=bshd,window_left=9,window_right=3,global_tokens=2"},
    {"batch=2,num_heads=2,seq_q=33,seq_kv=45,head_dim=16,attn_mask_dims=bqk,attn_bias_dims=hqk,is_causal=1"},
    {"batch=2,num_heads=2,seq_q=21,seq_kv=45,head_dim=8,attn_mask_dims=31,short_masks=1,logits_soft_cap=5"},
    {"batch=3,num_heads=2,seq_q=19,seq_kv=45,head_dim=8,has_kv_lens=1,has_causal_offsets=1,is_causal=1,"
     "has_alibi_slopes=1,has_sinks=1",
     .kv = {45, 1, 17}},
    /* Few rows. */
    {"num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=300,head_dim=40,has_lse=1"},
    {"batch=2,num_heads=4,num_kv_heads=1,seq_q=3,seq_kv=131,head_dim=72,has_kv_lens=1,is_causal=1,"
     "causal_align=bottom_right",
     .kv = {131, 90}},
    {"num_heads=4,num_kv_heads=1,seq_q=1,seq_kv=67,head_dim=36,head_dim_v=20,v_in_k=1"},
    /* Sizes of the call, ragged batches, pages, new keys. */
    {"num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=24,is_causal=1", "seq_q=27,seq_kv=43"},
    {"batch=3,num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=16,is_ragged=1,is_causal=1,causal_align=bottom_right,"
     "has_lse=1",
     "total_q=29,total_kv=52",
     {9, 0, 20},
     {11, 13, 28}},
    {"batch=2,num_heads=4,num_kv_heads=2,seq_q=5,seq_kv=dynamic,head_dim=24,page_size=7,has_kv_lens=1,is_causal=1,"
     "causal_align=bottom_right",
     "num_pages=9,max_pages=5", .kv = {31, 18}},
    {"batch=2,num_heads=4,num_kv_heads=2,seq_q=2,seq_kv=40,head_dim=24,seq_new=2,has_kv_lens=1,rotary_dim=8,"
     "is_causal=1,causal_align=bottom_right",
     "rotary_positions=40", .kv = {40, 23}},
    /* Other types, outputs and operators. */
    {"num_heads=2,seq_q=23,seq_kv=31,head_dim=20,dtype=f16,has_lse=1"},
    {"num_heads=2,seq_q=23,seq_kv=31,head_dim=21,head_dim_v=13,dtype=bf16,has_lse=1"},
    {"num_heads=2,seq_q=23,seq_kv=31,head_dim=20,dtype=f64,has_lse=1"},
    {"num_heads=2,seq_q=23,seq_kv=31,head_dim=20,weights_mode=softmax,weights_average=1"},
    {"op=rotary,num_heads=3,seq_q=11,head_dim=30,rotary_dim=22,rotary_interleaved=1", "rotary_positions=11"},
    {"op=merge,num_heads=3,seq_q=11,head_dim=13,num_parts=3"},
};

static void run_sample(attune_context *context, const sample *from) {
    sample_call call;
    attune_kernel *kernel = NULL;
    sample_call_open(&call, from, ON_THE_HEAP);
    if (attune_compile(context, &call.problem, NULL, &kernel) || attune_run(context, kernel, &call.arguments))
        fail_msg("%s: %s", from->problem, attune_last_message());
    attune_kernel_release(kernel);
    sample_call_close(&call);
}

/* A report of the sanitizer ends the program here, and the case with it. */
static void attention_stays_inside(void **state) {
    (void)state;
    attune_context *context = open_context(NULL);
    attune_machine_info machine = {.struct_size = sizeof machine};
    assert_int_equal(attune_get_machine_info(context, &machine), ATTUNE_OK);
    /* Best first. */
    const bool all = !getenv("ATTUNE_TEST_TARGETS");
    char isas[128];
    snprintf(isas, sizeof isas, "%s", machine.isas);
    attune_context_destroy(context);
    for (char *rest = NULL, *isa = strtok_r(isas, " ", &rest); isa; isa = all ? strtok_r(NULL, " ", &rest) : NULL) {
        context = open_context(isa);
        for (size_t i = 0; i < NUM_SAMPLES; i++) run_sample(context, &samples[i]);
        for (size_t i = 0; i < LENGTH(larger); i++) run_sample(context, &larger[i]);
        attune_context_destroy(context);
    }
}

/* Tensor n of the sample is a byte short: so its last element must be missed. */
static int run_short(const void *what, int64_t n) {
    sample_call call;
    attune_kernel *kernel = NULL;
    sample_call_open(&call, what, ON_THE_HEAP);
    tensor_memory *const m = &call.memory[n];
    char *const less = malloc(m->bytes - 1);
    if (!less) return 2;
    memcpy(less, m->data, m->bytes - 1);
    memcpy((char *)&call.arguments + call.tensors[n].pointer_offset, &less, sizeof less);
    attune_context *const context = open_context(NULL);
    if (attune_compile(context, &call.problem, NULL, &kernel)) return 3;
    return attune_run(context, kernel, &call.arguments) ? 4 : 0;
}

/* Every element of these is needed. */
static void the_last_elements_are_touched(void **state) {
    (void)state;
    static const sample whole[] = {
        {"num_heads=3,seq_q=37,seq_kv=41,head_dim=7,head_dim_v=19,has_lse=1,attn_bias_dims=hqk"},
        {"num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=300,head_dim=40,has_lse=1"},
    };
    for (size_t i = 0; i < LENGTH(whole); i++) {
        sample_call call;
        sample_call_open(&call, &whole[i], ON_THE_HEAP);
        for (size_t n = 0; n < call.count; n++) {
            const int code = run_apart(run_short, &whole[i], (int64_t)n, output, sizeof output);
            if (!was_reported(code, call.tensors[n].is_output ? "WRITE of size" : "READ of size"))
                fail_msg("%s, %s a byte short: ended with %d and said: %s", whole[i].problem, call.tensors[n].name,
                         code, output);
        }
        sample_call_close(&call);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_are_caught),
        cmocka_unit_test(attention_stays_inside),
        cmocka_unit_test(the_last_elements_are_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
