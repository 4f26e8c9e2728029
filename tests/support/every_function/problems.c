/* Kernels of problems: by text, by calls, in blocks and by plans. */
#include "support/every_function/every_function.h"
#include "support/every_function/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- Problems and schedules ---- */

const char *const every_text[NUM_EVERY_TEXT] = {
    "num_heads=2,seq_q=5,seq_kv=9,head_dim=16,softmax_scale=0.1,logits_soft_cap=0.3",
    "num_heads=1,seq_q=3,seq_kv=8,head_dim=8,score_mod=\"score * 1.1 + float(kv) * 0.1\",reproducible=1",
    "num_heads=2,seq_q=33,seq_kv=40,head_dim=24,dtype=bf16,prob_mod=\"prob * 0.3\",mask_mod=\"float(q) * 0.7 >= "
    "float(kv) "
    "* 0.3\"",
    "num_heads=2,seq_q=4,head_dim=8,softmax_scale=1e39",
    "num_heads=2,seq_q=4,head_dim=8,qk_norm_eps=0.3,softmax_scale=1e-42",
    "num_heads=2,seq_q=4,head_dim=8,softmax_scale=0.1.2",
    "num_heads=2,seq_q=4,head_dim=8,score_mod=\"score * 1e999\"",
};

void go_through_texts(attune_context *context) {
    char text[4096];
    for (int i = 0; i < NUM_EVERY_TEXT; i++) {
        attune_problem problem = ATTUNE_PROBLEM_INIT;
        char schedule[ATTUNE_SCHEDULE_BYTES];
        attune_prediction prediction = {.struct_size = sizeof prediction};
        attune_reason reason = {.struct_size = sizeof reason};
        attune_sight sight = ATTUNE_SIGHT_INIT;
        double flops;
        size_t length;
        STATUS(attune_problem_parse(&problem, every_text[i]));
        STATUS(attune_problem_check(&problem));
        CALL(length = attune_problem_print(&problem, text, sizeof text));
        note("%zu %s\n", length, text);
        CALL(flops = attune_problem_flops(&problem));
        note_double("flops", flops);
        STATUS(attune_sight_of(&problem, 4, 9, 0, 1, 3, &sight));
        note_bytes("sight", &sight, sizeof sight);
        STATUS(attune_schedule_choose(context, &problem, NULL, schedule, sizeof schedule));
        note("%s\n", schedule);
        STATUS(attune_schedule_predict(context, &problem, NULL, &prediction));
        note_bytes("prediction", &prediction, sizeof prediction);
        STATUS(attune_schedule_reason(context, &problem, 0, &reason));
        note("%d %s\n", reason.row, reason.schedule);
    }
}

/* ---- Calls of kernels ---- */

void every_answer(void *user, const attune_cache_answer *answer) {
    (void)user;
    note("%s is cached: %d\n", answer->key, answer->is_cached);
}

static void run_in_parts(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments) {
    attune_call *call = NULL;
    uint32_t phases;
    OK(attune_call_begin(context, kernel, arguments, 1, &call));
    CALL(phases = attune_call_num_phases(call));
    for (uint32_t p = 0; p < phases; p++) {
        int64_t tasks;
        CALL(tasks = attune_call_num_tasks(call, p));
        OK(attune_call_execute(call, p, 0, tasks, 0));
    }
    OK(attune_call_end(call));
}

static void run_everything(attune_context *context, sample_call *c) {
    attune_kernel *kernel = NULL;
    attune_arguments arguments;
    attune_tensor tensors[SAMPLE_TENSORS];
    size_t bytes, count;
    OK(attune_cache_why(context, &c->problem, NULL, every_answer, NULL));
    OK(attune_compile(context, &c->problem, NULL, &kernel));
    note_kernel(kernel);
    OK(attune_arguments_init_sized(&arguments, sizeof arguments, &c->problem));
    OK(attune_tensors(&c->problem, &c->arguments, tensors, SAMPLE_TENSORS, &count));
    OK(attune_workspace_size(context, kernel, &c->arguments, &bytes));
    OK(attune_workspace_size_with(context, kernel, &c->arguments, NULL, &bytes));
    OK(attune_run(context, kernel, &c->arguments));
    note_outputs(c);
    OK(attune_run_with(context, kernel, &c->arguments, NULL));
    note_outputs(c);
    run_in_parts(context, kernel, &c->arguments);
    note_outputs(c);
    OK(attune_run_interpreted(context, &c->problem, NULL, &c->arguments));
    note_outputs(c);
    note_emitted(context, &c->problem, ATTUNE_STAGE_LOWERED);
    note_emitted(context, &c->problem, ATTUNE_STAGE_IMAGE);
    arguments = c->arguments;
    arguments.softmax_scale = 1e300;
    STATUS(attune_run(context, kernel, &arguments));
    CALL(attune_kernel_release(kernel));
}

/* With a function of its own, lengths of its own, and codes; blocks are below. */
void go_through_calls(attune_context *context) {
    static const sample some[] = {
        {.problem = "num_heads=2,seq_q=5,seq_kv=9,head_dim=16,softmax_scale=0.1,logits_soft_cap=0.3,has_lse=1"},
        {.problem =
             "num_heads=1,seq_q=3,seq_kv=8,head_dim=8,softmax_scale=dynamic,mask_mod=\"float(q) * 0.7 >= float(kv) "
             "* 0.1\",score_mod=\"score * 1.1 + float(kv) * 0.1\""},
        {.problem = "num_heads=4,num_kv_heads=2,seq_q=4,seq_kv=40,head_dim=32,dtype=bf16,prob_mod=\"prob * 0.3\""},
        {.problem = "num_heads=2,seq_q=70,seq_kv=70,head_dim=32,softmax_precision=f64,is_causal=1,has_alibi_slopes=1"},
    };
    const int more[] = {HALF, CODES};
    for (size_t i = 0; i < sizeof some / sizeof *some + sizeof more / sizeof *more; i++) {
        const size_t own = sizeof some / sizeof *some;
        sample_call c;
        sample_call_open(&c, i < own ? &some[i] : &samples[more[i - own]], ON_THE_HEAP);
        make_denormals(&c);
        run_everything(context, &c);
        sample_call_close(&c);
    }
}

/* The IR of every sort of problem. */
void go_through_samples(attune_context *context) {
    for (int i = 0; i < NUM_SAMPLES; i++) {
        attune_problem problem = ATTUNE_PROBLEM_INIT;
        OK(attune_problem_parse(&problem, samples[i].problem));
        note_emitted(context, &problem, ATTUNE_STAGE_LOWERED);
    }
}

/* ---- Block masks, tensors of others, panels ---- */

static attune_dltensor dltensor_of_q(const sample_call *c, int64_t shape[4]) {
    return (attune_dltensor){.data = sample_call_data(c, "q"),
                             .device_type = 1,
                             .ndim = 4,
                             .dtype_code = 2,
                             .dtype_bits = 32,
                             .dtype_lanes = 1,
                             .shape = shape};
}

void go_through_block_masks(attune_context *context) {
    static const sample masked = {.problem = "num_heads=2,seq_q=40,seq_kv=90,head_dim=16,mask_mod=\"float(q) * 0.9 >= "
                                             "float(kv) * 0.4\""};
    sample_call c;
    attune_kernel *kernel = NULL;
    attune_block_mask *mask = NULL;
    int64_t shape[4] = {1, 2, 40, 16};
    sample_call_open(&c, &masked, ON_THE_HEAP);
    const attune_dltensor tensor = dltensor_of_q(&c, shape);
    OK(attune_compile(context, &c.problem, NULL, &kernel));
    OK(attune_bind_dlpack(&c.arguments, kernel, "q", &tensor));
    OK(attune_block_mask_create(context, kernel, &c.arguments, &mask));
    c.arguments.block_mask = mask;
    OK(attune_run(context, kernel, &c.arguments));
    note_outputs(&c);
    CALL(attune_block_mask_destroy(mask));
    CALL(attune_kernel_release(kernel));
    sample_call_close(&c);
}

void go_through_panels(void) {
    float rows[5 * 8], back[5 * 8], panels[4096];
    attune_panels p = ATTUNE_PANELS_INIT;
    for (int i = 0; i < 5 * 8; i++) rows[i] = (float)i * 0.1f;
    p.dtype = ATTUNE_F32, p.heads = 1, p.tokens = 5, p.columns = 8, p.rows = rows, p.panels = panels;
    memset(panels, 0, sizeof panels);
    OK(attune_panels_from_rows(&p));
    note_bytes("panels", panels, sizeof panels);
    p.rows = back;
    OK(attune_panels_to_rows(&p));
    assert_memory_equal(rows, back, sizeof rows);
}

/* ---- Blocks ---- */

static attune_mha_weights weights_of(const attune_problem *problem, float data[4][16 * 16], float scale) {
    attune_mha_weights weights;
    OK(attune_mha_weights_init_sized(&weights, sizeof weights, problem, ATTUNE_OUT_IN));
    for (int w = 0; w < 4; w++) {
        for (int i = 0; i < 16 * 16; i++) data[w][i] = scale * (float)((i * 37 + w) % 23 - 11);
        weights.tensor[w].data = data[w];
        weights.tensor[w].dtype = ATTUNE_F32;
    }
    return weights;
}

static void run_block(attune_context *context, const char *text) {
    static float data[4][16 * 16];
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_mha *mha = NULL, *other = NULL;
    attune_arguments arguments;
    float x[3 * 16], out[3 * 16];
    size_t bytes;
    void *packed = NULL;
    OK(attune_problem_parse(&problem, text));
    const attune_mha_weights weights = weights_of(&problem, data, 0.1f);
    OK(attune_packed_weights_size(&problem, &bytes));
    assert_int_equal(posix_memalign(&packed, 64, bytes), 0);
    memset(packed, 0, bytes);
    OK(attune_pack_weights(&problem, &weights, packed, bytes));
    note_bytes("packed", packed, bytes);
    OK(attune_packed_weights_check(&problem, packed, bytes));
    OK(attune_mha_create(context, &problem, NULL, &weights, &mha));
    OK(attune_mha_create_packed(context, &problem, NULL, packed, bytes, &other));
    OK(attune_arguments_init_sized(&arguments, sizeof arguments, &problem));
    for (int i = 0; i < 3 * 16; i++) x[i] = (float)(i % 7 - 3) * 0.3f;
    arguments.x.data = x, arguments.out.data = out;
    OK(attune_mha_run(mha, &arguments, NULL));
    note_bytes("block", out, sizeof out);
    OK(attune_mha_run(other, &arguments, NULL));
    note_bytes("block", out, sizeof out);
    CALL((void)!attune_mha_kernel(mha));
    CALL((void)!attune_mha_packed_weights(mha, &bytes));
    CALL((void)!attune_weight_name(ATTUNE_Q_WEIGHT));
    CALL(attune_mha_destroy(other));
    CALL(attune_mha_destroy(mha));
    free(packed);
}

void go_through_blocks(attune_context *context) {
    static float data[4][16 * 16];
    static char packed[1 << 16] __attribute__((aligned(64)));
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    run_block(context, "num_heads=2,seq_q=3,head_dim=8,embed_dim=16");
    OK(attune_problem_parse(&problem, "num_heads=2,seq_q=3,head_dim=8,embed_dim=16,w_dtype=i8"));
    attune_mha_weights weights = weights_of(&problem, data, 1e-41f);
    size_t bytes;
    OK(attune_packed_weights_size(&problem, &bytes));
    assert_true(bytes <= sizeof packed);
    memset(packed, 0, bytes);
    STATUS(attune_pack_weights(&problem, &weights, packed, bytes));
    note_bytes("packed", packed, bytes);
    weights = weights_of(&problem, data, 1e38f); /* refused with a number in the sentence */
    STATUS(attune_pack_weights(&problem, &weights, packed, bytes));
}

/* ---- Plans ---- */

static void wait_for(const attune_plan *plan) {
    attune_plan_info info = {.struct_size = sizeof info};
    for (;;) {
        OK(attune_plan_get_info(plan, &info));
        if (info.few_kernels || info.many_kernels) return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Its kernel is compiled by a thread that a function in this environment has started. */
static void run_plan(attune_context *context, const sample *from, bool has_deadline) {
    attune_plan_options options = ATTUNE_PLAN_OPTIONS_INIT;
    attune_plan *plan = NULL;
    attune_arguments arguments;
    sample_call c;
    size_t bytes;
    int64_t shape[4] = {1, 2, 40, 16};
    options.deadline_us = has_deadline ? 0 : -1;
    sample_call_open(&c, from, ON_THE_HEAP);
    make_denormals(&c);
    const attune_dltensor tensor = dltensor_of_q(&c, shape);
    OK(attune_plan_create(context, &c.problem, &options, &plan));
    OK(attune_plan_arguments_init_sized(plan, &arguments, sizeof arguments));
    OK(attune_plan_bind(plan, &c.arguments, "q", &tensor));
    STATUS(attune_plan_set_size(plan, &c.arguments, "seq_kv", 90));
    OK(attune_plan_set_number(plan, &c.arguments, "softmax_scale", 0.1));
    OK(attune_plan_workspace_size(plan, &c.arguments, NULL, &bytes));
    OK(attune_plan_run(plan, &c.arguments, NULL));
    note_outputs(&c);
    if (has_deadline) wait_for(plan);
    OK(attune_plan_prepare(plan));
    OK(attune_plan_run(plan, &c.arguments, NULL));
    note_outputs(&c);
    CALL(attune_plan_destroy(plan));
    sample_call_close(&c);
}

void go_through_plans(attune_context *context) {
    static const sample both[] = {
        {.problem = "num_heads=2,seq_q=40,seq_kv=dynamic,head_dim=16,softmax_scale=dynamic,reproducible=1,"
                    "score_mod=\"score + float(kv) * 0.1\"",
         .sizes = "seq_kv=90"},
        {.problem = "num_heads=2,seq_q=40,seq_kv=dynamic,head_dim=16,softmax_scale=dynamic,reproducible=1,"
                    "score_mod=\"score + float(kv) * 0.3\"",
         .sizes = "seq_kv=90"}};
    for (int has_deadline = 0; has_deadline < 2; has_deadline++) {
        run_plan(context, &both[has_deadline], has_deadline);
        CALL(attune_drop_memory_cache(context));
    }
}
