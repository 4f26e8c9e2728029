/* attune_compile on a small stack: as much as attune.h says, on a thread of the host's. */
#define _GNU_SOURCE
#include <attune.h>

#include "support/problems.h"
#include "support/calls.h"
#include "support/engine/contexts.h"
#include "support/engine/tuning_db.h"
#include "support/statuses.h"

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
    "is_causal=1,has_lse=1,has_alibi_slopes=1,seq_new=2,attn_mask_dims=k,attn_bias_dims=qk",
    "embed_dim=11,out_dim=6,is_cross=1,num_heads=8,num_kv_heads=4,seq_q=4,seq_kv=4,head_dim=3,head_dim_v=96,dtype=f64,"
    "has_lse=1,weights_mode=masked",
    "batch=2,num_heads=3,num_kv_heads=1,seq_q=dynamic,seq_kv=41,head_dim=74,head_dim_v=112,dtype=bf16,is_causal=1,"
    "causal_align=bottom_right,window_left=3,has_lse=1,has_sinks=1,has_kv_lens=1,has_causal_offsets=1,page_size=16,"
    "max_seq_q=108,short_masks=1,attn_mask_dims=2:1:1:2,attn_bias_dims=bhk,rotary_dim=74,rotary_interleaved=1",
    "num_heads=4,num_kv_heads=2,seq_q=70,seq_kv=96,head_dim=32,has_lse=1,has_kv_lens=1,tensors=\"t:f32[h, q, kv], "
    "d:i32[kv]\","
    "score_mod=\"score + t[h, q, kv] * float(q - kv)\",mask_mod=\"d[kv] <= q | kv < 3\"",
    "num_heads=4,num_kv_heads=2,seq_q=4,seq_kv=64,head_dim=32,kv_dtype=i4,kv_scales=inline,seq_new=4,has_kv_lens=1,"
    "has_lse=1",
    "op=weights,num_heads=4,num_kv_heads=2,seq_q=2,seq_kv=33,head_dim=19,dtype=f16,weights_average=1",
};
enum { PROBLEMS = sizeof problems / sizeof *problems };

/* ---- Functions as deep as they may be ---- */

enum { DEEPEST = 100, DEEP = 5, TEXT_BYTES = 8192 };
static char deep[DEEP][TEXT_BYTES];

/* name="before … before inner after … after", nested `depth` deep. */
static void add_nested(char *text, const char *name, int depth, const char *before, const char *inner,
                       const char *after) {
    char *at = text + strlen(text);
    at += sprintf(at, ",%s=\"", name);
    for (int i = 0; i < depth; i++) at += sprintf(at, "%s", before);
    at += sprintf(at, "%s", inner);
    for (int i = 0; i < depth; i++) at += sprintf(at, "%s", after);
    sprintf(at, "\"");
}

static int make_deep(void **state) {
    static const char usual[] = "num_heads=4,num_kv_heads=2,seq_q=70,seq_kv=96,head_dim=32,has_lse=1,has_kv_lens=1";
    static const char wide[] = "num_heads=4,num_kv_heads=2,seq_q=4,seq_kv=49,head_dim=53,head_dim_v=26,dtype=f64,"
                               "attn_bias_dims=qk,reproducible=1";
    (void)state;
    for (int i = 0; i < DEEP; i++) strcpy(deep[i], i < 3 ? usual : wide);
    add_nested(deep[0], "score_mod", DEEPEST, "abs(", "score", ")");
    add_nested(deep[1], "prob_mod", DEEPEST, "-(", "prob", ")");
    strcat(deep[2], ",tensors=\"t:i32[9]\"");
    add_nested(deep[2], "mask_mod", DEEPEST - 2, "t[clamp(", "q", ")]");
    add_nested(deep[3], "score_mod", DEEPEST, "1-(", "score", ")");
    strcat(deep[4], ",tensors=\"t:i32[9]\"");
    add_nested(deep[4], "mask_mod", DEEPEST - 2, "t[clamp(", "kv", ")]");
    add_nested(deep[4], "score_mod", DEEPEST, "exp(", "score", ")");
    for (int i = 2; i < DEEP; i += 2) { /* a mask is a condition */
        char *const end = strstr(strstr(deep[i], "mask_mod"), ")]\"") + 2;
        memmove(end + 4, end, strlen(end) + 1);
        memcpy(end, " > 0", 4);
    }
    return 0;
}

static const char *problem_at(int i) { return i < PROBLEMS ? problems[i] : deep[i - PROBLEMS]; }

/* ---- On a small stack ---- */

typedef struct work {
    attune_context *context;
    const char *text;
    attune_problem problem;
    attune_kernel *kernel;
    attune_status status;
    char message[ATTUNE_MESSAGE_BYTES];
} work;

typedef attune_status work_fn(work *w);

typedef struct task {
    work_fn *fn;
    work *w;
} task;

static void *run_task(void *argument) {
    const task *const t = argument;
    t->w->status = t->fn(t->w);
    snprintf(t->w->message, sizeof t->w->message, "%s", attune_last_message());
    return NULL;
}

static void on_a_small_stack(work *w, work_fn *fn, const char *what) {
    pthread_attr_t attributes;
    pthread_t thread;
    task t = {fn, w};
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attributes, run_task, &t), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    if (w->status) fail_msg("%s of %s: %s", what, w->text, w->message);
}

static attune_status parse(work *w) {
    const attune_status status = attune_problem_init(&w->problem, sizeof w->problem);
    return status ? status : attune_problem_parse(&w->problem, w->text);
}

static attune_status compile(work *w) { return attune_compile(w->context, &w->problem, NULL, &w->kernel); }

static void compile_on_a_small_stack(attune_context *context, const char *text) {
    work w = {.context = context, .text = text};
    on_a_small_stack(&w, parse, "parsing");
    on_a_small_stack(&w, compile, "compiling");
    attune_kernel_release(w.kernel);
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
    options.compile_mode = mode;
    options.isa = isa;
    options.cache_dir = cache_dir;
    options.log = ignore_line;
    options.event = ignore_event;
    for (int round = 0; round < 2; round++) {
        attune_context *context = NULL;
        context = test_context(&options, NULL);
        for (int i = 0; i < PROBLEMS + DEEP; i++) compile_on_a_small_stack(context, problem_at(i));
        const attune_statistics statistics = statistics_of(context);
        assert_int_equal(round ? statistics.disk_hits : statistics.compiles, PROBLEMS + DEEP);
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
        context = test_context(&options, NULL);
        for (int n = 0; n < PROBLEMS + DEEP; n++) compile_on_a_small_stack(context, problem_at(n));
        attune_context_destroy(context);
    }
}
static void by_a_worker(void **state) { compile_all(ATTUNE_COMPILE_WORKER, smallest, *state); }

/* ---- Results of tuning, and everything else that is done with a problem ---- */

static attune_status check(work *w) { return attune_problem_check(&w->problem); }

static attune_status print(work *w) {
    static char text[TEXT_BYTES];
    attune_problem again = ATTUNE_PROBLEM_INIT;
    if (attune_problem_print(&w->problem, text, sizeof text) >= sizeof text) return ATTUNE_INTERNAL;
    const attune_status status = attune_problem_parse(&again, text);
    return status ? status : attune_problem_check(&again); /* canonical text is no deeper than may be */
}

static attune_status choose(work *w) {
    attune_prediction prediction = {.struct_size = sizeof prediction};
    attune_reason reason = {.struct_size = sizeof reason};
    attune_status status = attune_schedule_choose(w->context, &w->problem, NULL, NULL, 0);
    if (!status) status = attune_schedule_reason(w->context, &w->problem, 0, &reason);
    return status ? status : attune_schedule_predict(w->context, &w->problem, "", &prediction);
}

static attune_status emit(work *w) {
    void *data = NULL;
    size_t bytes;
    const attune_status status = attune_emit(w->context, &w->problem, NULL, ATTUNE_STAGE_IMAGE, &data, &bytes);
    attune_free(w->context, data);
    return status;
}

static void everything_else(void **state) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip();
#endif
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    work w = {0};
    options.cache_dir = *state;
    assert_int_equal(attune_context_create(&options, &w.context), ATTUNE_OK);
    for (int i = 0; i < PROBLEMS + DEEP; i++) {
        w.text = problem_at(i);
        on_a_small_stack(&w, parse, "parsing");
        on_a_small_stack(&w, check, "checking");
        on_a_small_stack(&w, print, "printing");
        on_a_small_stack(&w, choose, "choosing a schedule");
        on_a_small_stack(&w, emit, "emitting");
    }
    attune_context_destroy(w.context);
}

/* There is a winner for other lengths, whose problem is read from the database and parsed. */
static void near_a_winner(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip();
#endif
    attune_context *const context = open_context(own_dir, "", 1);
    for (int i = 0; i < DEEP; i++) {
        work w = {.context = context, .text = deep[i]};
        char near[TEXT_BYTES];
        assert_int_equal(parse(&w), ATTUNE_OK);
        const mha_schedule schedule = schedule_chosen_by(context, &w.problem);
        plant(context, own_db, deep[i], &schedule, 0.5);
        strcpy(near, deep[i]);
        memcpy(strstr(near, "seq_kv="), i < 3 ? "seq_kv=95" : "seq_kv=48", 9);
        compile_on_a_small_stack(context, near);
    }
    attune_context_destroy(context);
}

/* ---- Running ---- */

static const attune_arguments *shared_arguments;

static attune_status run(work *w) { return attune_run(w->context, w->kernel, shared_arguments); }

static attune_status interpret(work *w) {
    return attune_run_interpreted(w->context, &w->problem, NULL, shared_arguments);
}

/* Machine code, the virtual machine, code of tier 0, and the interpreter. */
static void running(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip();
#endif
    static const attune_compile_mode modes[] = {ATTUNE_COMPILE_IN_PROCESS, ATTUNE_COMPILE_NEVER};
    const char *const texts[] = {problems[0], deep[0], deep[1], deep[2], deep[3], deep[4]};
    for (int m = 0; m < 2; m++) {
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        work w = {0};
        options.compile_mode = modes[m];
        options.cache_dir = "";
        options.max_workers = 1;
        options.log = ignore_line;
        assert_int_equal(attune_context_create(&options, &w.context), ATTUNE_OK);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            sample_call call;
            const sample from = {.problem = w.text = texts[i], .kv = {7}};
            sample_call_open(&call, &from, ON_THE_HEAP);
            shared_arguments = &call.arguments;
            on_a_small_stack(&w, parse, "parsing");
            on_a_small_stack(&w, compile, "compiling");
            on_a_small_stack(&w, run, "running");
            on_a_small_stack(&w, interpret, "interpreting");
            attune_kernel_release(w.kernel);
            sample_call_close(&call);
        }
        attune_context_destroy(w.context);
    }
}

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_DIRECTORY(in_process), /* the first, so that it loads LLVM on the small stack */
        WITH_DIRECTORY(in_process_for_the_smallest),
        WITH_DIRECTORY(by_a_worker),
        WITH_DIRECTORY(without_a_compiler),
        WITH_DIRECTORY(everything_else),
        CASE(near_a_winner),
        cmocka_unit_test(running),
    };
    return cmocka_run_group_tests(tests, make_deep, NULL);
}
