/* attune_compile on a small stack: as much as attune.h says, on a thread of the host's. */
#define _GNU_SOURCE
#include <attune.h>

#include "support/temp_dir.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STACK_BYTES = 64 * 1024 };

/* Of each kind: those that need most, among some hundred random ones, were of f64 without fused multiply-adds, and
 * ragged or paged with all that can be added. */
static const char *const problems[] = {
    "num_heads=2,seq_q=64,head_dim=64",
    "num_heads=8,seq_q=512,head_dim=256,softmax_precision=f64,reproducible=1",
    "num_heads=16,num_kv_heads=2,seq_q=dynamic,seq_kv=49,head_dim=53,head_dim_v=26,dtype=f64,logits_soft_cap=2,"
    "is_causal=1,lse=1,alibi_slopes=1,seq_new=2,attn_mask=k,attn_bias=qk",
    "embed_dim=11,out_dim=6,cross=1,num_heads=8,num_kv_heads=4,seq_q=4,seq_kv=4,head_dim=3,head_dim_v=96,dtype=f64,"
    "lse=1,weights=masked",
    "batch=2,num_heads=3,num_kv_heads=1,seq_q=dynamic,seq_kv=41,head_dim=74,head_dim_v=112,dtype=bf16,is_causal=1,"
    "causal_align=bottom_right,window_left=3,lse=1,sinks=1,kv_lens=1,causal_offsets=1,page_size=16,max_seq_q=108,"
    "short_masks=1,attn_mask=2:1:1:2,attn_bias=bhk,rotary_dim=74,rotary_interleaved=1",
    "num_heads=4,num_kv_heads=2,seq_q=70,seq_kv=96,head_dim=32,lse=1,kv_lens=1,tensor=\"t:f32[h, q, kv], d:i32[kv]\","
    "score_mod=\"score + t[h, q, kv] * float(q - kv)\",mask_mod=\"d[kv] <= q | kv < 3\"",
    "num_heads=4,num_kv_heads=2,seq_q=4,seq_kv=64,head_dim=32,kv_dtype=i4,kv_scales=inline,seq_new=4,kv_lens=1,lse=1",
    "op=weights,num_heads=4,num_kv_heads=2,seq_q=2,seq_kv=33,head_dim=19,dtype=f16,weights_average=1",
};
enum { PROBLEMS = sizeof problems / sizeof *problems };

typedef struct work {
    attune_context *context;
    attune_problem problem;
    attune_status status;
    char message[ATTUNE_MESSAGE_BYTES];
} work;

static void *compile(void *argument) {
    work *w = argument;
    attune_kernel *kernel = NULL;
    w->status = attune_compile(w->context, &w->problem, NULL, &kernel);
    snprintf(w->message, sizeof w->message, "%s", attune_last_message());
    attune_kernel_release(kernel);
    return NULL;
}

static void compile_on_a_small_stack(attune_context *context, const char *text) {
    work w = {.context = context};
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(attune_problem_init(&w.problem, sizeof w.problem), ATTUNE_OK);
    if (attune_problem_parse(text, &w.problem)) fail_msg("%s", attune_last_message());
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attributes, compile, &w), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    if (w.status) fail_msg("%s: %s", text, w.message);
}

static void ignore_line(void *user, attune_log_level level, const char *message) {
    (void)user, (void)level, (void)message;
}

static void ignore_event(void *user, const attune_event *event) { (void)user, (void)event; }

/* By the compiler, then from disk. */
static void compile_all(attune_compile_mode mode, const char *isa, const char *cache_dir) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip(); /* their frames are several times as large */
#endif
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_statistics statistics = {.struct_size = sizeof statistics};
    options.compile_mode = mode;
    options.isa = isa;
    options.cache_dir = cache_dir;
    options.log = ignore_line;
    options.event = ignore_event;
    for (int round = 0; round < 2; round++) {
        attune_context *context = NULL;
        if (attune_context_create(&options, &context)) fail_msg("%s", attune_last_message());
        for (int i = 0; i < PROBLEMS; i++) compile_on_a_small_stack(context, problems[i]);
        assert_int_equal(attune_get_statistics(context, &statistics), ATTUNE_OK);
        assert_int_equal(round ? statistics.disk_hits : statistics.compiles, PROBLEMS);
        attune_context_destroy(context);
    }
}

#ifdef __x86_64__
static const char smallest[] = "x86-64";
#else
static const char smallest[] = "aarch64";
#endif

static void in_process(void **state) { compile_all(ATTUNE_COMPILE_IN_PROCESS, NULL, *state); }
static void in_process_for_the_smallest(void **state) { compile_all(ATTUNE_COMPILE_IN_PROCESS, smallest, *state); }
/* The virtual machine's translation, which nothing is kept of. */
static void without_a_compiler(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip();
#endif
    static const char *const isas[] = {NULL, smallest};
    for (int i = 0; i < 2; i++) {
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        attune_context *context = NULL;
        options.compile_mode = ATTUNE_COMPILE_NEVER;
        options.isa = isas[i];
        options.cache_dir = "";
        options.log = ignore_line;
        if (attune_context_create(&options, &context)) fail_msg("%s", attune_last_message());
        for (int n = 0; n < PROBLEMS; n++) compile_on_a_small_stack(context, problems[n]);
        attune_context_destroy(context);
    }
}
static void by_a_worker(void **state) { compile_all(ATTUNE_COMPILE_WORKER, smallest, *state); }

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_DIRECTORY(in_process), /* the first, so that it loads LLVM on the small stack */
        WITH_DIRECTORY(in_process_for_the_smallest),
        WITH_DIRECTORY(by_a_worker),
        WITH_DIRECTORY(without_a_compiler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
