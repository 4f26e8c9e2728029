/* Every public function under every floating-point environment of its caller: results, keys and text are those of the
 * default environment, and the caller's is as it was after each call, flags included. And in a locale with a decimal
 * comma. */
#include <attune.h>

#include "base/fpenv.h"
#include "support/calls.h"
#include "support/environments.h"
#include "support/temp_dir.h"

#include <fcntl.h>
#include <glob.h>
#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- What a run of everything gives ---- */

enum { RECORD_BYTES = 1 << 20 };

typedef struct record {
    environment where;
    const char *dir; /* empty at first, the run's own */
    char *text;
    size_t length;
} record;

static record *now; /* the one under way */

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    now->length += (size_t)vsnprintf(now->text + now->length, RECORD_BYTES - now->length, format, arguments);
    va_end(arguments);
    assert_true(now->length < RECORD_BYTES);
}

static uint64_t hash_of(const void *data, size_t bytes) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void note_bytes(const char *what, const void *data, size_t bytes) {
    note("%s: %zu bytes, %016llx\n", what, bytes, (unsigned long long)hash_of(data, bytes));
}

static void note_double(const char *what, double value) { note_bytes(what, &value, sizeof value); }

/* Names of functions that were called. */
enum { MOST_CALLED = 160 };
static char called[MOST_CALLED][48];
static size_t num_called;

static void remember(const char *call) {
    char name[48];
    const char *const at = strstr(call, "attune_");
    assert_true(at && sscanf(at, "%47[a-z_0-9]", name) == 1);
    for (size_t i = 0; i < num_called; i++)
        if (!strcmp(called[i], name)) return;
    assert_true(num_called < MOST_CALLED);
    strcpy(called[num_called++], name);
}

/* One call in the environment. */
#define CALL(call)                                                                                                     \
    do {                                                                                                               \
        remember(#call);                                                                                               \
        environment_enter(now->where);                                                                                 \
        call;                                                                                                          \
        environment_leave(now->where, #call);                                                                          \
    } while (0)

/* One that returns a status: what it says is noted. */
#define STATUS(call)                                                                                                   \
    do {                                                                                                               \
        attune_status status_;                                                                                         \
        CALL(status_ = call);                                                                                          \
        note("%.60s: %s %s\n", #call, attune_status_name(status_), status_ ? attune_last_message() : "");              \
    } while (0)

/* One that must succeed. */
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        attune_status status_;                                                                                         \
        CALL(status_ = call);                                                                                          \
        if (status_) fail_msg("%s under %s: %s", #call, environment_names[now->where], attune_last_message());         \
    } while (0)

/* ---- Problems and schedules ---- */

static const char *const texts[] = {
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
enum { TEXTS = sizeof texts / sizeof *texts };

static void go_through_texts(attune_context *context) {
    char text[4096];
    for (int i = 0; i < TEXTS; i++) {
        attune_problem problem = ATTUNE_PROBLEM_INIT;
        char schedule[ATTUNE_SCHEDULE_BYTES];
        attune_prediction prediction = {.struct_size = sizeof prediction};
        attune_sight sight = ATTUNE_SIGHT_INIT;
        double flops;
        size_t length;
        STATUS(attune_problem_parse(&problem, texts[i]));
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
    }
}

/* ---- Calls of kernels ---- */

static void note_kernel(const attune_kernel *kernel) {
    attune_kernel_info info = {.struct_size = sizeof info};
    OK(attune_kernel_get_info(kernel, &info));
    note("key %s, %llu bytes of code\n", info.key, (unsigned long long)info.code_bytes);
}

static void note_outputs(const sample_call *call) {
    for (size_t i = 0; i < call->count; i++)
        if (call->tensors[i].is_output) note_bytes(call->tensors[i].name, call->memory[i].data, call->memory[i].bytes);
}

/* Smaller than the smallest normal number, in the first quarter of each input of f32. */
static void make_denormals(const sample_call *call) {
    for (size_t i = 0; i < call->count; i++)
        if (call->tensors[i].is_input && call->tensors[i].dtype == ATTUNE_F32 && call->tensors[i].rank > 1)
            for (size_t n = 0; n < call->memory[i].bytes / 16; n++)
                ((uint32_t *)call->memory[i].data)[n] &= 0x807fffffu;
}

static void emit(attune_context *context, const attune_problem *problem, attune_stage stage) {
    void *data = NULL;
    size_t bytes = 0;
    OK(attune_emit(context, problem, NULL, stage, &data, &bytes));
    note_bytes("emitted", data, bytes);
    CALL(attune_free(context, data));
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

static int take_answer(const attune_cache_answer *answer) {
    note("%s is cached: %d\n", answer->key, answer->is_cached);
    return 0;
}

static void answer_why(void *user, const attune_cache_answer *answer) { (void)user, take_answer(answer); }

static void run_everything(attune_context *context, sample_call *c) {
    attune_kernel *kernel = NULL;
    attune_arguments arguments;
    attune_tensor tensors[SAMPLE_TENSORS];
    size_t bytes, count;
    OK(attune_cache_why(context, &c->problem, NULL, answer_why, NULL));
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
    emit(context, &c->problem, ATTUNE_STAGE_LOWERED);
    emit(context, &c->problem, ATTUNE_STAGE_IMAGE);
    arguments = c->arguments;
    arguments.softmax_scale = 1e300;
    STATUS(attune_run(context, kernel, &arguments));
    CALL(attune_kernel_release(kernel));
}

/* With a function of its own, lengths of its own, and codes; blocks are below. */
static void go_through_calls(attune_context *context) {
    static const sample some[] = {
        {.problem = "num_heads=2,seq_q=5,seq_kv=9,head_dim=16,softmax_scale=0.1,logits_soft_cap=0.3,lse=1"},
        {.problem =
             "num_heads=1,seq_q=3,seq_kv=8,head_dim=8,softmax_scale=dynamic,mask_mod=\"float(q) * 0.7 >= float(kv) "
             "* 0.1\",score_mod=\"score * 1.1 + float(kv) * 0.1\""},
        {.problem = "num_heads=4,num_kv_heads=2,seq_q=4,seq_kv=40,head_dim=32,dtype=bf16,prob_mod=\"prob * 0.3\""},
        {.problem = "num_heads=2,seq_q=70,seq_kv=70,head_dim=32,softmax_precision=f64,is_causal=1,alibi_slopes=1"},
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
static void go_through_samples(attune_context *context) {
    for (int i = 0; i < NUM_SAMPLES; i++) {
        attune_problem problem = ATTUNE_PROBLEM_INIT;
        OK(attune_problem_parse(&problem, samples[i].problem));
        emit(context, &problem, ATTUNE_STAGE_LOWERED);
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

static void go_through_block_masks(attune_context *context) {
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

static void go_through_panels(void) {
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

static void go_through_blocks(attune_context *context) {
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

static void go_through_plans(attune_context *context) {
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

/* ---- Attention for engines ---- */

static void go_through_attentions(attune_context *context) {
    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    attune_step step = ATTUNE_STEP_INIT;
    attune_cache_size size = ATTUNE_CACHE_SIZE_INIT;
    attune_attention *attention = NULL;
    float q[4 * 2 * 8], k_cache[16 * 2 * 8], v_cache[16 * 2 * 8], out[4 * 2 * 8];
    const int32_t starts[] = {0, 4}, lens[] = {13}, table[] = {1, 0};
    char text[512];
    size_t bytes;
    OK(attune_attention_desc_init(&desc, sizeof desc));
    OK(attune_step_init(&step, sizeof step));
    for (int i = 0; i < 16 * 2 * 8; i++) {
        q[i % (4 * 2 * 8)] = (float)(i % 7 - 3) * 0.3f;
        k_cache[i] = i % 5 ? (float)(i % 11) * 0.1f : 1e-41f;
        v_cache[i] = (float)(i % 3) * 1e-40f;
    }
    desc.num_heads = 2, desc.head_dim = 8, desc.kv = ATTUNE_KV_PAGED, desc.page_size = 8, desc.is_causal = 1;
    desc.extra = "score_mod=\"score + float(kv) * 0.1\"";
    OK(attune_attention_create(context, &desc, &attention));
    CALL(attune_attention_problem(attention, text, sizeof text));
    note_bytes("problem", text, strlen(text));
    OK(attune_attention_cache_size(attention, 2, 0, &size));
    assert_int_equal(size.k_bytes, sizeof k_cache);
    step.batch = 1;
    step.q.data = q, step.k_cache.data = k_cache, step.v_cache.data = v_cache, step.out.data = out;
    step.cu_seqlens_q = starts, step.kv_lens = lens, step.block_table = table;
    step.num_pages = step.max_pages = 2;
    OK(attune_attention_workspace_size(attention, &step, &bytes));
    OK(attune_attention_prepare(attention));
    OK(attune_attention_run(attention, &step));
    note_bytes("out", out, sizeof out);
    attune_step_plan *plan = NULL;
    OK(attune_step_plan_create(attention, &step, &plan));
    OK(attune_step_plan_workspace_size(plan, &step, &bytes));
    OK(attune_step_plan_run(plan, &step));
    note_bytes("planned out", out, sizeof out);
    CALL(attune_step_plan_destroy(plan));
    CALL(attune_attention_destroy(attention));
}

static void go_through_linear_attention(attune_context *context) {
    attune_linear_desc desc = ATTUNE_LINEAR_DESC_INIT;
    attune_linear_step step = ATTUNE_LINEAR_STEP_INIT;
    attune_linear *linear = NULL;
    float rows[4 * 8], decay[4], beta[4], state[2][8 * 8], out[2][4 * 8];
    OK(attune_linear_desc_init(&desc, sizeof desc));
    OK(attune_linear_step_init(&step, sizeof step));
    for (int i = 0; i < 4 * 8; i++) rows[i] = i % 5 ? (float)(i % 7 - 3) * 0.3f : 1e-41f;
    for (int i = 0; i < 4; i++) decay[i] = (float)i * -0.1f, beta[i] = 0.7f;
    for (int i = 0; i < 2 * 8 * 8; i++) state[i / 64][i % 64] = (float)(i % 64) * 1e-40f;
    desc.num_heads = 1, desc.head_dim = 8;
    desc.rule = ATTUNE_GATED_DELTA, desc.decay = ATTUNE_DECAY_HEAD, desc.has_beta = 1, desc.qk_norm_eps = 1e-6;
    OK(attune_linear_create(context, &desc, &linear));
    OK(attune_linear_prepare(linear));
    step.batch = 1, step.seq = 4;
    step.q.data = step.k.data = step.v.data = rows, step.decay.data = decay, step.beta.data = beta;
    step.state.data = state[0], step.out.data = out[0];
    OK(attune_linear_run(linear, &step));
    step.state.data = state[1], step.out.data = out[1];
    OK(attune_linear_run_interpreted(linear, &step));
    note_bytes("linear out", out, sizeof out);
    note_bytes("linear state", state, sizeof state);
    CALL(attune_linear_destroy(linear));
}

static void go_through_index_and_attention(attune_context *context, attune_index *index,
                                           const attune_index_step *index_step) {
    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    attune_step step = ATTUNE_STEP_INIT;
    attune_attention *attention = NULL;
    float rows[60 * 8], out[8];
    for (int i = 0; i < 60 * 8; i++) rows[i] = (float)(i % 11 - 5) * 0.3f;
    desc.num_heads = 1, desc.head_dim = 8, desc.layout = ATTUNE_BSHD, desc.extra = "kv_ids=query,kv_id_lens=1";
    OK(attune_attention_create(context, &desc, &attention));
    step.batch = step.seq_q = 1, step.seq_kv = 60;
    step.q.data = step.k.data = step.v.data = rows, step.out.data = out;
    OK(attune_index_attend(index, index_step, attention, &step));
    note_bytes("attended to the index", out, sizeof out);
    attune_step_plan *plan = NULL;
    OK(attune_step_plan_create(attention, &step, &plan));
    OK(attune_index_attend_plan(index, index_step, plan, &step));
    CALL(attune_step_plan_destroy(plan));
    note_bytes("attended to the index", out, sizeof out);
    CALL(attune_attention_destroy(attention));
}

static void go_through_index(attune_context *context) {
    attune_index_desc desc = ATTUNE_INDEX_DESC_INIT;
    attune_index_step step = ATTUNE_INDEX_STEP_INIT;
    attune_index *index = NULL;
    float rows[60 * 8], w[2] = {0.7f, 1e-30f}, scores[2][5];
    int32_t ids[2][5], lens[1];
    OK(attune_index_desc_init(&desc, sizeof desc));
    OK(attune_index_step_init(&step, sizeof step));
    for (int i = 0; i < 60 * 8; i++) rows[i] = i % 5 ? (float)(i % 7 - 3) * 0.3f : 1e-41f;
    desc.num_heads = 2, desc.head_dim = 8, desc.num_ids = 5, desc.has_scores = 1;
    OK(attune_index_create(context, &desc, &index));
    OK(attune_index_prepare(index));
    step.batch = step.seq_q = 1, step.seq_kv = 60;
    step.q.data = step.k.data = rows, step.w.data = w, step.lens = lens;
    step.ids = ids[0], step.scores = scores[0];
    OK(attune_index_run(index, &step));
    step.ids = ids[1], step.scores = scores[1];
    OK(attune_index_run_interpreted(index, &step));
    note_bytes("index ids", ids, sizeof ids);
    note_bytes("index scores", scores, sizeof scores);
    go_through_index_and_attention(context, index, &step);
    CALL(attune_index_destroy(index));
}

static void go_through_mla(attune_context *context) {
    enum { EMBED = 16, HEADS = 2, RANK = 16, DIM = 8, TOKENS = 3 };
    attune_mla_desc desc = ATTUNE_MLA_DESC_INIT;
    attune_mla_weights weights = ATTUNE_MLA_WEIGHTS_INIT;
    attune_mla_step step = ATTUNE_MLA_STEP_INIT;
    attune_mla *mla = NULL;
    float numbers[HEADS * 2 * DIM * EMBED], x[TOKENS * EMBED], angles[TOKENS * DIM / 2], out[TOKENS * EMBED];
    float cache[TOKENS * (RANK + DIM)];
    OK(attune_mla_desc_init(&desc, sizeof desc));
    OK(attune_mla_step_init(&step, sizeof step));
    for (int i = 0; i < HEADS * 2 * DIM * EMBED; i++) numbers[i] = (float)(i % 11 - 5) * 0.1f;
    for (int i = 0; i < TOKENS * EMBED; i++) x[i] = i % 5 ? (float)(i % 7 - 3) * 0.3f : 1e-41f;
    for (int i = 0; i < TOKENS * DIM / 2; i++) angles[i] = 0.7f;
    desc.embed_dim = EMBED, desc.num_heads = HEADS, desc.kv_lora_rank = RANK;
    desc.qk_nope_head_dim = desc.qk_rope_head_dim = desc.v_head_dim = DIM;
    weights.q_proj = weights.kv_a_proj = weights.kv_a_layernorm = weights.kv_b_proj = weights.o_proj = numbers;
    OK(attune_mla_create(context, &desc, &weights, &mla));
    OK(attune_mla_prepare(mla));
    step.batch = 1, step.seq = step.cache_rows = step.num_positions = TOKENS;
    step.x.data = x, step.cos = step.sin = angles, step.cache.data = cache, step.out.data = out;
    OK(attune_mla_run(mla, &step));
    note_bytes("mla out", out, sizeof out);
    note_bytes("mla cache", cache, sizeof cache);
    CALL(attune_mla_destroy(mla));
}

/* ---- Loop IR, and operators of one's own ---- */

static const char axpy[] = "kernel @axpy (n: i64, x: f32[n] in, y: f32[n] out) {\n"
                           " assume n >= 0:i64\n"
                           " parallel for i in 0..n as idx { y[i] = x[i] * 0.1:f32 + (0.7:f32 * 1e-42:f32) }\n}\n";

static void observe(void *user, const char *pass, const char *text) {
    (void)user;
    note_bytes(pass, text, strlen(text));
}

static int build_scaling(void *user, const attune_build_request *request, attune_ir_writer *w) {
    int tenths;
    (void)user;
    if (sscanf(request->problem, "tenths=%d", &tenths) != 1) return 1;
    const double factor = tenths / 10.0;
    environment_enter(now->where);
    attune_ir_print(w, "kernel @scaling (x: f32[8] in, y: f32[8] out) {\nparallel for i in 0..8 { y[i] = x[i] * ");
    attune_ir_print(w, "%.17g } }\n", factor);
    environment_leave(now->where, "attune_ir_print");
    remember("attune_ir_print");
    return 0;
}

static void run_ir(attune_context *context, const attune_kernel *kernel, float *x, float *y) {
    void *const buffers[] = {x, y};
    attune_call *call = NULL;
    int64_t tasks;
    OK(attune_ir_run(context, kernel, ATTUNE_ENGINE_JIT, buffers, NULL));
    note_bytes("y", y, 8 * sizeof *y);
    OK(attune_ir_run(context, kernel, ATTUNE_ENGINE_INTERPRETER, buffers, NULL));
    note_bytes("y", y, 8 * sizeof *y);
    OK(attune_ir_call_begin(context, kernel, buffers, NULL, 1, &call));
    CALL(tasks = attune_call_num_tasks(call, 0));
    OK(attune_call_execute(call, 0, 0, tasks, 0));
    OK(attune_call_end(call));
}

static const char constants[] =
    "kernel @constants (x: f32[8] in, y: f32[8] out) {\nparallel for i in 0..8 { y[i] = x[i] "
    "* 0.1 + (0.7 * 1e-42) + sqrt(0.3) } }\n";

static void go_through_ir(attune_context *context) {
    const attune_ir_parameter *parameters;
    attune_kernel *kernel = NULL;
    float x[8], y[8];
    void *data = NULL;
    size_t bytes, count, rank;
    int64_t dims[8];
    for (int i = 0; i < 8; i++) x[i] = i < 4 ? (float)i * 0.3f : (float)i * 1e-42f;
    OK(attune_ir_emit(context, constants, ATTUNE_STAGE_LOWERED, &data, &bytes));
    note("%s\n", (const char *)data);
    CALL(attune_free(context, data));
    STATUS(attune_ir_emit(context, axpy, ATTUNE_STAGE_LOWERED, &data, &bytes));
    STATUS(attune_ir_emit(context, "kernel @k (x: f32[1] out) { x[0] = 1e99 }", ATTUNE_STAGE_IR, &data, &bytes));
    OK(attune_ir_dump_passes(context, constants, observe, NULL));
    OK(attune_ir_cache_why(context, constants, answer_why, NULL));
    OK(attune_ir_compile(context, constants, &kernel));
    note_kernel(kernel);
    OK(attune_ir_parameters(kernel, &parameters, &count));
    OK(attune_ir_shape(kernel, 1, NULL, dims, &rank));
    run_ir(context, kernel, x, y);
    CALL(attune_kernel_release(kernel));
}

static int stop_search(void *user, const attune_tune_progress *progress) {
    (void)user, (void)progress;
    return 1;
}

static void go_through_operators(attune_context *context) {
    static const int32_t values[] = {1, 2};
    static const attune_choice choices[] = {{"rounds", values, 2, 1, 0}};
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    attune_operator *op = NULL;
    attune_kernel *kernel = NULL;
    const int32_t *numbers;
    int32_t tuned[1];
    size_t count;
    float x[8], y[8];
    options.name = "scaling", options.version = 1, options.build = build_scaling;
    options.choices = choices, options.num_choices = 1;
    how.progress = stop_search, how.budget_seconds = 0.05;
    for (int i = 0; i < 8; i++) x[i] = (float)i * 0.3f;
    OK(attune_operator_add(context, &options, &op));
    OK(attune_operator_cache_why(op, "tenths=1", NULL, answer_why, NULL));
    OK(attune_operator_compile(op, "tenths=1", NULL, &kernel));
    note_kernel(kernel);
    OK(attune_operator_numbers(kernel, &numbers, &count));
    run_ir(context, kernel, x, y);
    OK(attune_operator_tune(op, "tenths=1", (void *[]){x, y}, NULL, &how, tuned, &result));
    CALL(attune_kernel_release(kernel));
}

/* ---- Tuning, bundles, caches, machines ---- */

static void go_through_tuning(attune_context *context) {
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    char path[TEMP_DIR_CHARS + 16];
    uint64_t taken, of_here;
    sample_call c;
    sample_call_open(&c, &samples[PLAIN], ON_THE_HEAP);
    how.budget_seconds = 0.3;
    OK(attune_tune(context, &c.problem, &c.arguments, &how, &result));
    how.budget_seconds = 0.01;
    STATUS(attune_tune(context, &c.problem, &c.arguments, &how, &result));
    sample_call_close(&c);
    snprintf(path, sizeof path, "%s/results.db", now->dir);
    OK(attune_tuning_export(context, path));
    OK(attune_tuning_import(context, path, &taken, &of_here));
}

static void go_through_bundles(attune_context *context) {
    attune_bundle_options options = ATTUNE_BUNDLE_OPTIONS_INIT;
    attune_bundle_files files = {0};
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_machine_info machine = {.struct_size = sizeof machine};
    const attune_bundle_kernel kernel = {.name = "attn", .problem = &problem};
    OK(attune_get_machine_info(context, &machine));
    OK(attune_problem_parse(&problem, texts[1]));
    options.name = "model", options.targets = machine.isa;
    STATUS(attune_bundle_make(context, &options, &kernel, 1, &files));
    if (files.library) note_bytes("library", files.library, files.library_bytes);
    if (files.header) note("%s\n", (const char *)files.header);
    CALL(attune_free(context, files.library));
    CALL(attune_free(context, files.header));
    STATUS(attune_context_add_bundle(context, NULL));
}

static int note_entry(void *user, const attune_cache_entry *entry) {
    ++*(int *)user;
    (void)entry;
    return 0;
}

static void go_through_caches(attune_context *context) {
    char copy[TEMP_DIR_CHARS + 16], pack[TEMP_DIR_CHARS + 16];
    attune_cache_copied copied = {.struct_size = sizeof copied};
    attune_cache_collected collected = {.struct_size = sizeof collected};
    int entries = 0;
    void *part = NULL;
    char *signature = NULL;
    uint64_t removed;
    size_t bytes;
    snprintf(copy, sizeof copy, "%s/copy", now->dir);
    snprintf(pack, sizeof pack, "%s/pack", now->dir);
    OK(attune_cache_visit(context, note_entry, &entries));
    assert_true(entries > 0); /* how many depends on what the tuner found */
    OK(attune_cache_export(context, copy, &copied));
    OK(attune_cache_import(context, copy, &copied));
    OK(attune_cache_pack(context, pack, NULL, 0, &copied));
    CALL((void)!attune_cache_seal(context, pack, copy));
    CALL((void)!attune_cache_add(context, pack, &copied));
    CALL((void)!attune_cache_pack_parts(context, pack, &part, &bytes, &signature));
    CALL(attune_free(context, part));
    CALL(attune_free(context, signature));
    OK(attune_cache_gc(context, 1 << 30, &collected));
    OK(attune_cache_clear(context, &removed));
}

static void go_through_machines(attune_context *context) {
    attune_machine_probe probe = {.struct_size = sizeof probe};
    attune_statistics statistics = {.struct_size = sizeof statistics};
    CALL((void)!attune_probe_machine(context, &probe));
    OK(attune_get_statistics(context, &statistics));
    CALL((void)!attune_last_message());
    CALL((void)!attune_status_name(ATTUNE_OK));
    CALL((void)!attune_version());
}

static void go_through_structs(void) {
    attune_bundle_options bundle;
    attune_run_options run;
    attune_runner runner;
    attune_context_options context;
    attune_operator_options op;
    attune_plan_options plan;
    attune_problem problem;
    attune_tune_options tune;
    OK(attune_bundle_options_init(&bundle, sizeof bundle));
    OK(attune_run_options_init(&run, sizeof run));
    OK(attune_runner_init(&runner, sizeof runner));
    OK(attune_context_options_init(&context, sizeof context));
    OK(attune_operator_options_init(&op, sizeof op));
    OK(attune_plan_options_init(&plan, sizeof plan));
    OK(attune_problem_init(&problem, sizeof problem));
    OK(attune_tune_options_init(&tune, sizeof tune));
}

/* ---- All of it ---- */

static attune_context *open_context(attune_compile_mode mode) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    char dir[TEMP_DIR_CHARS + 16];
    snprintf(dir, sizeof dir, "%s/cache", now->dir);
    options.cache_dir = dir;
    options.compile_mode = mode;
    options.max_workers = 2;
    OK(attune_context_create(&options, &context));
    return context;
}

static void go_through_all(void) {
    attune_context *const context = open_context(ATTUNE_COMPILE_IN_PROCESS);
    go_through_structs();
    go_through_texts(context);
    go_through_samples(context);
    go_through_calls(context);
    go_through_block_masks(context);
    go_through_panels();
    go_through_blocks(context);
    go_through_plans(context);
    go_through_attentions(context);
    go_through_linear_attention(context);
    go_through_index(context);
    go_through_mla(context);
    go_through_ir(context);
    go_through_operators(context);
    go_through_bundles(context);
    go_through_machines(context);
    go_through_tuning(context);
    go_through_caches(context);
    CALL(attune_context_destroy(context));
}

static void record_run(record *r, environment where, void (*run)(void)) {
    char dir[TEMP_DIR_CHARS];
    temp_dir_make(dir);
    *r = (record){.where = where, .dir = dir, .text = malloc(RECORD_BYTES)};
    assert_non_null(r->text);
    now = r;
    run();
    temp_dir_remove_all(dir);
}

/* The first line in which two texts differ. */
static void assert_same_record(const record *a, const record *b) {
    size_t line = 0;
    for (size_t i = 0; i < a->length || i < b->length; i++) {
        if (a->text[i] != b->text[i])
            fail_msg("under %s: %.*s\nand by default: %.*s", environment_names[b->where],
                     (int)strcspn(b->text + line, "\n"), b->text + line, (int)strcspn(a->text + line, "\n"),
                     a->text + line);
        if (a->text[i] == '\n') line = i + 1;
    }
}

static void compare_environments(void (*run)(void)) {
    record usual, other;
    record_run(&usual, ENV_DEFAULT, run);
    for (environment where = ENV_DOWNWARD; where < NUM_ENVIRONMENTS; where++) {
        record_run(&other, where, run);
        assert_same_record(&usual, &other);
        free(other.text);
    }
    free(usual.text);
}

static void every_function(void **state) {
    (void)state;
    compare_environments(go_through_all);
}

/* A worker compiles: it begins with the environment of a new program. */
static void compile_by_a_worker(void) {
    attune_context *const context = open_context(ATTUNE_COMPILE_WORKER);
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel = NULL;
    OK(attune_problem_parse(&problem, texts[1]));
    OK(attune_compile(context, &problem, NULL, &kernel));
    note_kernel(kernel);
    emit(context, &problem, ATTUNE_STAGE_IMAGE);
    CALL(attune_kernel_release(kernel));
    CALL(attune_context_destroy(context));
}

static void a_worker(void **state) {
    (void)state;
    compare_environments(compile_by_a_worker);
}

/* Nothing is compiled: the virtual machine, or code of tier 0. */
static void compute_without_a_compiler(void) {
    attune_context *const context = open_context(ATTUNE_COMPILE_NEVER);
    static const sample some = {.problem =
                                    "num_heads=2,seq_q=9,seq_kv=21,head_dim=16,softmax_scale=0.1,score_mod=\"score "
                                    "+ float(kv) * 0.1\""};
    const sample *const both[] = {&some, &samples[PLAIN]};
    for (int i = 0; i < 2; i++) {
        sample_call c;
        attune_kernel *kernel = NULL;
        sample_call_open(&c, both[i], ON_THE_HEAP);
        make_denormals(&c);
        OK(attune_compile(context, &c.problem, NULL, &kernel));
        OK(attune_run(context, kernel, &c.arguments));
        note_outputs(&c);
        CALL(attune_kernel_release(kernel));
        sample_call_close(&c);
    }
    CALL(attune_context_destroy(context));
}

static void without_a_compiler(void **state) {
    (void)state;
    compare_environments(compute_without_a_compiler);
}

/* ---- The list of functions ---- */

static bool was_called(const char *name) {
    for (size_t i = 0; i < num_called; i++)
        if (!strcmp(called[i], name)) return true;
    return false;
}

static void check_header(const char *path) {
    static char text[1 << 17];
    FILE *const f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    for (char *at = text; (at = strstr(at, "\nATTUNE_"));) {
        char name[48];
        const bool is_checked = !strncmp(at, "\nATTUNE_CHECKED ", strlen("\nATTUNE_CHECKED "));
        if (!is_checked && strncmp(at, "\nATTUNE_API ", strlen("\nATTUNE_API "))) {
            at++;
            continue;
        }
        at += strlen("\nATTUNE_API ");
        while (strncmp(at, "attune_", 7) || strcspn(at, " (*;") != strcspn(at, "(")) at++;
        assert_int_equal(sscanf(at, "%47[a-z_0-9]", name), 1);
        if (!was_called(name)) fail_msg("%s: %s is not called in this test", path, name);
    }
}

/* A function that is new must be called above. */
static void all_are_called(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob("include/attune/*.h", 0, NULL, &found), 0);
    assert_int_equal(glob("include/attune/expert/*.h", GLOB_APPEND, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) check_header(found.gl_pathv[i]);
    globfree(&found);
    check_header("include/attune.h");
}

/* ---- Threads of the host ---- */

typedef struct host {
    environment where;
    bool submits;
    pthread_t threads[8];
    int num_threads;
    attune_task_fn *task;
    attune_range_fn *fn;
    void *argument;
    int64_t n;
} host;

static void *run_on_a_thread(void *user) {
    host *const h = user;
    environment_enter(h->where);
    if (h->submits)
        h->task(h->argument);
    else
        h->fn(h->argument, 0, h->n, 0);
    environment_leave(h->where, "a task on a thread of the host");
    return NULL;
}

static void host_parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    host *const h = user;
    h->fn = fn, h->argument = argument, h->n = n;
    assert_int_equal(pthread_create(&h->threads[0], NULL, run_on_a_thread, h), 0);
    pthread_join(h->threads[0], NULL);
}

/* Ends the helper before the caller begins to work, so the helper computes everything. */
static int host_submit(void *user, attune_task_fn *task, void *argument) {
    host *const h = user;
    h->task = task, h->argument = argument;
    assert_int_equal(pthread_create(&h->threads[0], NULL, run_on_a_thread, h), 0);
    pthread_join(h->threads[0], NULL);
    return 0;
}

static void run_by_host(const sample_call *c, environment where, bool submits) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    attune_kernel *kernel = NULL;
    attune_runner runner = ATTUNE_RUNNER_INIT;
    host h = {.where = where, .submits = submits};
    runner.user = &h;
    runner.max_workers = 2;
    if (submits)
        runner.submit = host_submit;
    else
        runner.parallel_for = host_parallel_for;
    options.runner = &runner;
    options.cache_dir = "";
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    assert_int_equal(attune_compile(context, &c->problem, NULL, &kernel), ATTUNE_OK);
    if (attune_run(context, kernel, &c->arguments)) fail_msg("%s", attune_last_message());
    assert_true(h.num_threads || h.argument);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void threads_of_the_host(void **state) {
    (void)state;
    static const sample large = {.problem = "num_heads=8,seq_q=128,seq_kv=200,head_dim=64,softmax_scale=0.1"};
    sample_call a, b;
    sample_call_open(&a, &large, ON_THE_HEAP);
    sample_call_open(&b, &large, ON_THE_HEAP);
    make_denormals(&a);
    make_denormals(&b);
    run_by_host(&a, ENV_DEFAULT, false);
    for (int submits = 0; submits < 2; submits++)
        for (environment where = ENV_DOWNWARD; where < NUM_ENVIRONMENTS; where++) {
            run_by_host(&b, where, submits);
            if (!sample_calls_agree(&a, &b)) fail_msg("under %s", environment_names[where]);
        }
    sample_call_close(&a);
    sample_call_close(&b);
}

/* ---- The mechanism ---- */

static int early(int which) {
    AT_DEFAULT_FPENV;
    if (which == 1) return 1;
    for (;;)
        if (which == 2) break;
    return 2;
}

static void every_way_out(void **state) {
    (void)state;
    for (environment where = ENV_DEFAULT; where < NUM_ENVIRONMENTS; where++)
        for (int which = 1; which <= 2; which++) {
            environment_enter(where);
            const int got = early(which);
            environment_leave(where, "every_way_out");
            assert_int_equal(got, which);
        }
}

/* ---- Locales ---- */

/* Numbers with a decimal comma, and an i whose capital is no I. Their data are made here, unless the system has none.
 */
static void other_locales(void **state) {
    (void)state;
    static const char *const names[][2] = {{"de_DE", "UTF-8"}, {"tr_TR", "ISO-8859-9"}};
    char dir[TEMP_DIR_CHARS], command[2 * TEMP_DIR_CHARS], name[64];
    record usual, other;
    bool has_comma = false;
    temp_dir_make(dir);
    record_run(&usual, ENV_DEFAULT, go_through_all);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s.%s", names[i][0], names[i][1]);
        snprintf(command, sizeof command, "localedef -i %s -f %s '%s/%s' >/dev/null 2>&1", names[i][0], names[i][1],
                 dir, name);
        const int made = system(command); /* warnings count as failures, so only the result is asked */
        setenv("LOCPATH", dir, 1);
        if (made >= 0 && setlocale(LC_ALL, name) && localeconv()->decimal_point[0] == ',') {
            has_comma = true;
            record_run(&other, ENV_DEFAULT, go_through_all);
            setlocale(LC_ALL, "C");
            assert_same_record(&usual, &other);
            free(other.text);
        }
        unsetenv("LOCPATH");
    }
    temp_dir_remove_all(dir);
    free(usual.text);
    if (!has_comma) {
        print_message("localedef makes no locale with a decimal comma here\n");
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_out), cmocka_unit_test(every_function),     cmocka_unit_test(all_are_called),
        cmocka_unit_test(a_worker),      cmocka_unit_test(without_a_compiler), cmocka_unit_test(threads_of_the_host),
        cmocka_unit_test(other_locales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
