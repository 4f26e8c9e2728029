/* Steps of a language model where nothing can be compiled: each is computed by machine code of tier 0, none by the
 * virtual machine. They have the bits that the interpreter gives their loop IR, and are near the formula in double. */
#include "ref_attention.h"
#include "support/engine/tier0.h"
#include "support/statuses.h"

#include <attune.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 3, KV_HEADS = 2, KEYS = 64, STEPS = 4 };

/* New tokens of each sequence: prompts, a chunk beside decoding, decoding twice. */
static const int queries[STEPS][BATCH] = {{21, 5, 33}, {1, 17, 1}, {1, 1, 1}, {1, 1, 1}};

/* ---- Bits ---- */

#define STEP                  "batch=3,is_ragged=1,has_kv_lens=1,is_causal=1,"
#define SIZES(pages, columns) .sizes = "total_q=27,num_pages=" #pages ",max_pages=" #columns
#define PROMPTS               .q = {5, 1, 21}, .kv = {90, 3, 21}
#define TOKENS                .q = {1, 1, 0}, .kv = {90, 1, 17}
#define LATENTS               "head_dim=576,head_dim_v=512,v_in_k=1"
#define LISTING               "batch=3,is_ragged=1,has_kv_lens=1,kv_ids=query,has_kv_id_lens=1,"

static const struct {
    sample from;
    const char *kernel;
} cases[] = {
    {{STEP "num_heads=4,num_kv_heads=2,head_dim=64,page_size=16,seq_new=dynamic", SIZES(10, 6), PROMPTS},
     "step_f32_64_many"},
    {{STEP "num_heads=6,num_kv_heads=2,head_dim=80,page_size=16,dtype=bf16", SIZES(10, 6), PROMPTS},
     "step_bf16_80_many"},
    {{STEP "num_heads=8,num_kv_heads=1,head_dim=128,page_size=32,dtype=bf16,seq_new=dynamic", SIZES(6, 3), PROMPTS},
     "step_bf16_128_many"},
    {{STEP "num_heads=2,head_dim=112,page_size=64,dtype=f16,seq_new=dynamic,has_lse=1", SIZES(4, 2), PROMPTS},
     "step_f16_112_many"},
    {{STEP "num_heads=7,num_kv_heads=1,head_dim=64,page_size=128,dtype=bf16,has_lse=1", SIZES(3, 1), PROMPTS},
     "step_bf16_64_many"},
    {{STEP "num_heads=4,num_kv_heads=2,head_dim=64,page_size=16,max_seq_q=1", SIZES(10, 6), TOKENS}, "step_f32_64_few"},
    {{STEP "num_heads=10,num_kv_heads=2,head_dim=128,page_size=256,dtype=bf16,max_seq_q=6,seq_new=dynamic", SIZES(3, 1),
      TOKENS},
     "step_bf16_128_few"},
    {{STEP "num_heads=2,head_dim=96,page_size=32,dtype=f16,max_seq_q=31,seq_new=dynamic", SIZES(6, 3), PROMPTS},
     "step_f16_96_few"},
    {{STEP "num_heads=16,num_kv_heads=2,head_dim=256,page_size=16,dtype=bf16,max_seq_q=3,has_lse=1", SIZES(10, 6),
      TOKENS},
     "step_bf16_256_few"},
    {{"batch=3,is_ragged=1,has_kv_lens=1,num_heads=4,num_kv_heads=1,head_dim=128,page_size=64,max_seq_q=1,"
      "softmax_scale=0.3",
      SIZES(4, 2), TOKENS},
     "step_f32_128_few"},
    {{STEP "num_heads=4,num_kv_heads=2,head_dim=64,page_size=16,window_left=17,seq_new=dynamic", SIZES(10, 6), PROMPTS},
     "step_f32_64_many"},
    {{STEP "num_heads=8,num_kv_heads=1,head_dim=64,page_size=64,dtype=bf16,max_seq_q=1,window_left=30,has_sinks=1",
      SIZES(4, 2), TOKENS},
     "step_bf16_64_few"},
    {{STEP "num_heads=2,head_dim=80,page_size=16,dtype=bf16,window_left=3,has_sinks=1,has_lse=1", SIZES(10, 6),
      PROMPTS},
     "step_bf16_80_many"},
    {{STEP "num_heads=6,num_kv_heads=2,head_dim=64,page_size=32,dtype=bf16,kv_dtype=i8,kv_scales=token,seq_new=dynamic",
      SIZES(6, 3), PROMPTS},
     "step_bf16_i8_64_many"},
    {{STEP "num_heads=8,num_kv_heads=2,head_dim=128,page_size=16,kv_dtype=i8,kv_scales=token,max_seq_q=5", SIZES(10, 6),
      TOKENS},
     "step_f32_i8_128_few"},
    {{STEP "num_heads=4,num_kv_heads=2,head_dim=256,page_size=16,dtype=bf16,logits_soft_cap=50,seq_new=dynamic",
      SIZES(10, 6), PROMPTS},
     "step_bf16_cap_256_many"},
    {{STEP "num_heads=8,num_kv_heads=1,head_dim=256,page_size=32,logits_soft_cap=0.3,window_left=9,max_seq_q=1",
      SIZES(6, 3), TOKENS},
     "step_f32_cap_256_few"},
    {{STEP "num_heads=4,num_kv_heads=2,head_dim=128,page_size=16,dtype=bf16,logits_soft_cap=30,max_seq_q=5",
      SIZES(10, 6), TOKENS},
     "step_bf16_cap_128_few"},
    {{STEP "num_heads=4,num_kv_heads=2,head_dim=128,page_size=16,seq_new=dynamic,has_lse=1", SIZES(10, 6), PROMPTS},
     "step_f32_128_many"},
    /* Batches that are not ragged, and keys without pages. */
    {{"batch=3,num_heads=4,num_kv_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=64,has_kv_lens=1,is_causal=1,"
      "seq_new=dynamic",
      .sizes = "seq_q=5,seq_kv=70,seq_new=5", .kv = {70, 5, 33}},
     "step_f32_64_many"},
    {{"batch=3,num_heads=6,num_kv_heads=2,seq_q=1,seq_kv=dynamic,head_dim=128,dtype=bf16,has_kv_lens=1,seq_new=2,"
      "has_lse=1",
      .sizes = "seq_kv=70", .kv = {70, 5, 33}},
     "step_bf16_128_few"},
    {{"batch=2,num_heads=6,num_kv_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=80,dtype=f16,is_causal=1,has_lse=1",
      .sizes = "seq_q=9,seq_kv=40"},
     "step_f16_80_many"},
    {{"batch=2,num_heads=6,num_kv_heads=2,seq_q=3,seq_kv=50,head_dim=96,is_causal=1,causal_align=bottom_right,"
      "window_left=20,has_sinks=1,kv_dtype=i8,kv_scales=token"},
     "step_f32_i8_96_few"},
    {{"batch=3,is_ragged=1,num_heads=4,num_kv_heads=2,head_dim=64,dtype=bf16,is_causal=1",
      .sizes = "total_q=27,total_kv=114", PROMPTS},
     "step_bf16_64_many"},
    {{"batch=3,is_ragged=1,num_heads=4,num_kv_heads=2,head_dim=64,is_causal=1,kv_dtype=i8,kv_scales=token,max_seq_q=1",
      .sizes = "total_q=2,total_kv=108", TOKENS},
     "step_f32_i8_64_few"},
    {{"batch=3,num_heads=4,num_kv_heads=2,seq_q=3,head_dim=256,dtype=bf16,is_causal=1,page_size=64,has_kv_lens=1",
      .sizes = "num_pages=5,max_pages=2", .kv = {90, 3, 21}},
     "step_bf16_256_few"},
    {{STEP "num_heads=4,num_kv_heads=1,head_dim=256,page_size=16,q_strides=0:256:1024:1", SIZES(10, 6), PROMPTS},
     "step_f32_256_many"},
    /* Latents, whose first columns are the values, and listed keys. */
    {{STEP "num_heads=16,num_kv_heads=1,dtype=bf16,max_seq_q=1,page_size=64," LATENTS, SIZES(4, 2), TOKENS},
     "step_bf16_latent_576_few"},
    {{STEP "num_heads=4,num_kv_heads=1,max_seq_q=6,page_size=16,softmax_scale=0.072," LATENTS, SIZES(10, 6), TOKENS},
     "step_f32_latent_576_few"},
    {{STEP "num_heads=128,num_kv_heads=1,dtype=bf16,max_seq_q=1,page_size=64,softmax_scale=0.072," LATENTS, SIZES(4, 2),
      TOKENS},
     "step_bf16_latent_576_many"},
    {{STEP "num_heads=6,num_kv_heads=1,page_size=32," LATENTS, SIZES(6, 3), PROMPTS}, "step_f32_latent_576_many"},
    {{"batch=3,num_heads=8,num_kv_heads=1,seq_q=1,seq_kv=dynamic,dtype=bf16,has_kv_lens=1," LATENTS,
      .sizes = "seq_kv=70", .kv = {70, 5, 33}},
     "step_bf16_latent_576_few"},
    {{LISTING "num_heads=16,num_kv_heads=1,dtype=bf16,page_size=64," LATENTS,
      .sizes = "total_q=27,num_pages=4,max_pages=2,num_ids=250", PROMPTS},
     "bf16_576_listed"},
    {{LISTING "num_heads=128,num_kv_heads=1,dtype=bf16,page_size=16,max_seq_q=1,softmax_scale=0.072," LATENTS,
      .sizes = "total_q=2,num_pages=10,max_pages=6,num_ids=300", TOKENS},
     "bf16_576_listed"},
    {{"batch=3,has_kv_lens=1,num_heads=5,num_kv_heads=1,dtype=bf16,seq_q=2,seq_kv=dynamic,kv_ids=query,num_ids=250,"
      "has_kv_id_lens=1," LATENTS,
      .sizes = "seq_kv=70", .kv = {70, 5, 33}},
     "bf16_576_listed"},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

/* What the call's own loop IR gives: the code has another order of sums. */
static void check_numbers(const char *isa, int i, const sample_call *run) {
    const attune_context_options options = {.struct_size = sizeof options, .cache_dir = "", .isa = isa};
    attune_context *context;
    sample_call own;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    sample_call_open(&own, &cases[i].from, ON_THE_HEAP);
    if (attune_run_interpreted(context, &own.problem, NULL, &own.arguments)) fail_msg("%s", attune_last_message());
    for (size_t t = 0; t < own.count; t++) {
        const attune_dtype dtype = own.tensors[t].dtype;
        const double most = dtype == ATTUNE_BF16 ? 2e-2 : dtype == ATTUNE_F16 ? 2e-3 : 1e-5;
        const bool is_result = !strcmp(own.tensors[t].name, "out") || !strcmp(own.tensors[t].name, "lse");
        if (!is_result && memcmp(run->memory[t].data, own.memory[t].data, own.memory[t].bytes)) /* appended to */
            fail_msg("%s, %s: %s differs", isa, cases[i].from.problem, own.tensors[t].name);
        if (!is_result) continue;
        for (size_t e = 0; e < own.memory[t].bytes / (dtype == ATTUNE_F32 ? 4 : 2); e++) {
            const double x = (double)ref_load(dtype, run->memory[t].data, e),
                         y = (double)ref_load(dtype, own.memory[t].data, e);
            if (!(fabs(x - y) <= most * fmax(1, fabs(y))) && memcmp(&x, &y, sizeof x))
                fail_msg("%s, %s: %s[%zu] is %g, not %g", isa, cases[i].from.problem, own.tensors[t].name, e, x, y);
        }
    }
    sample_call_close(&own);
    attune_context_destroy(context);
}

static void check_case(const char *isa, int i) {
    attune_context *const context = tier0_context(isa);
    sample_call run, expected;
    sample_call_open(&run, &cases[i].from, BEFORE_A_GUARD);
    sample_call_open(&expected, &cases[i].from, ON_THE_HEAP);
    attune_kernel *kernel = kernel_of(context, &run.problem);
    const attune_kernel_info info = kernel_info_of(kernel);
    assert_int_equal(info.origin, ATTUNE_FROM_TIER0);
    if (!strstr(last_hit, cases[i].kernel)) fail_msg("%s: %s", cases[i].from.problem, last_hit);
    if (attune_run(context, kernel, &run.arguments)) fail_msg("%s", attune_last_message());
    if (attune_run_interpreted(context, &expected.problem, NULL, &expected.arguments))
        fail_msg("%s", attune_last_message());
    if (!sample_calls_agree(&run, &expected)) fail_msg("%s: other bits: %s", isa, cases[i].from.problem);
    check_numbers(isa, i, &run);
    sample_call_close(&run);
    sample_call_close(&expected);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

/* There is no room for latents on the baseline of x86-64. */
static bool has_kernel(const char *isa, int i) { return strcmp(isa, "x86-64") != 0 || !strstr(cases[i].kernel, "576"); }

static void has_the_bits_of_its_ir(void **state) {
    (void)state;
    for (int t = 0; t < TIER0_NUM_ISAS; t++)
        for (int i = 0; i < NUM_CASES && tier0_runs_here(tier0_isas[t]); i++)
            if (has_kernel(tier0_isas[t], i)) check_case(tier0_isas[t], i);
}

/* With `reproducible` they have the bits of the call's own loop IR, too, whatever the number of queries. */
static void check_reproducible(const char *isa, int i) {
    char problem[256];
    snprintf(problem, sizeof problem, "%s,reproducible=1", cases[i].from.problem);
    sample from = cases[i].from;
    from.problem = problem;
    const attune_context_options options = {.struct_size = sizeof options, .cache_dir = "", .isa = isa};
    attune_context *const context = tier0_context(isa);
    attune_context *other;
    sample_call run, own;
    assert_int_equal(attune_context_create(&options, &other), ATTUNE_OK);
    sample_call_open(&run, &from, BEFORE_A_GUARD);
    sample_call_open(&own, &from, ON_THE_HEAP);
    attune_kernel *const kernel = kernel_of(context, &run.problem);
    const attune_kernel_info info = kernel_info_of(kernel);
    if (info.origin != ATTUNE_FROM_TIER0 || !strstr(last_hit, "many")) fail_msg("%s, %s: %s", isa, problem, last_hit);
    if (attune_run(context, kernel, &run.arguments)) fail_msg("%s", attune_last_message());
    if (attune_run_interpreted(other, &own.problem, NULL, &own.arguments)) fail_msg("%s", attune_last_message());
    if (!sample_calls_agree(&run, &own)) fail_msg("%s: other bits: %s", isa, problem);
    sample_call_close(&run);
    sample_call_close(&own);
    attune_kernel_release(kernel);
    attune_context_destroy(other);
    attune_context_destroy(context);
}

static bool has_reproducible(int i) {
    const char *const kernel = cases[i].kernel;
    return !strstr(kernel, "_i8_") && !strstr(kernel, "_cap_") && !strstr(kernel, "listed");
}

static void reproducible_steps_have_the_same_bits(void **state) {
    (void)state;
    for (int t = 0; t < TIER0_NUM_ISAS; t++)
        for (int i = 0; i < NUM_CASES && tier0_runs_here(tier0_isas[t]); i++)
            if (has_reproducible(i) && has_kernel(tier0_isas[t], i)) check_reproducible(tier0_isas[t], i);
}

/* By phases, as adapters run it on threads of their engine. */
static void threads_of_the_caller_run_it(void **state) {
    (void)state;
    tier0_assert_phases_agree(&cases[6].from);
}

static void others_get_none(void **state) {
    (void)state;
    static const char *const problems[] = {
        STEP "num_heads=4,head_dim=64,page_size=8",
        STEP "num_heads=4,head_dim=64,page_size=48",
        STEP "num_heads=4,head_dim=72,page_size=16",
        STEP "num_heads=4,head_dim=64,page_size=16,causal_align=top_left",
        STEP "num_heads=4,head_dim=96,page_size=16,kv_dtype=i8,kv_scales=token,reproducible=1",
        STEP "num_heads=4,head_dim=64,page_size=16,causal_offset=1",
        STEP "num_heads=4,head_dim=64,page_size=16,window_left=9,global_tokens=1",
        STEP "num_heads=4,head_dim=64,page_size=16,logits_soft_cap=30",
        STEP "num_heads=4,head_dim=256,page_size=16,dtype=bf16,logits_soft_cap=2e37",
        STEP "num_heads=4,head_dim=64,page_size=16,kv_dtype=i8,kv_scales=head",
        STEP "num_heads=4,head_dim=64,page_size=16,kv_dtype=f16,dtype=bf16",
        "batch=3,is_ragged=1,has_kv_lens=1,num_heads=4,head_dim=64,page_size=16",
        STEP "num_heads=4,num_kv_heads=1,dtype=f16,page_size=16," LATENTS,
        LISTING "num_heads=4,num_kv_heads=1,dtype=bf16,page_size=8," LATENTS,
        LISTING "num_heads=4,num_kv_heads=1,dtype=bf16,page_size=16,reproducible=1," LATENTS,
        LISTING "num_heads=4,num_kv_heads=1,page_size=16," LATENTS,
        "batch=3,is_ragged=1,has_kv_lens=1,kv_ids=query,num_heads=4,num_kv_heads=1,dtype=bf16,page_size=16," LATENTS,
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) tier0_assert_none(problems[i]);
}

/* ---- Numbers ---- */

/* An element of q, k or v (0, 1, 2), by its place in a sequence: a multiple of 1/64, which bf16 and f16 hold. */
static double element(int t, int b, int token, int head, int column) {
    uint32_t x = (uint32_t)(((t * 8 + b) * 128 + token) * 16 + head) * 256u + (uint32_t)column;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return (double)((x ^ x >> 15) % 129) / 64 - 1;
}

typedef struct run {
    attune_attention_desc desc;
    int group, dim, columns, window; /* -1: all keys */
    double cap;                      /* 0: none */
    char extra[64];
    const float *sinks;
    int unseen; /* keys from this one on are NaN, and only rows before it are checked */
    int32_t lens[BATCH], starts[BATCH + 1];
    int32_t *table;
    char *q, *k, *v, *k_cache, *v_cache, *out;
    float *k_scale, *v_scale; /* of caches of i8 */
} run;

static void *numbers(size_t count) {
    void *const all = calloc(count, sizeof(float));
    assert_non_null(all);
    return all;
}

typedef struct model {
    attune_dtype dtype;
    int group, dim, page, window;
    bool has_sinks, in_i8;
    double cap;
} model;

static run open_run(const model *m) {
    static const float sinks[16] = {0, 1, -1, 0.5f, 2, -2, 0.25f, 3, 0, 1, -1, 0.5f, 2, -2, 0.25f, 3};
    const attune_dtype dtype = m->dtype;
    const int group = m->group, dim = m->dim, page = m->page;
    run r = {.desc = ATTUNE_ATTENTION_DESC_INIT, .group = group, .dim = dim, .columns = (KEYS + page - 1) / page};
    r.unseen = KEYS;
    r.window = m->window ? m->window : -1;
    if (m->has_sinks) r.sinks = sinks;
    attune_attention_desc *const d = &r.desc;
    d->num_kv_heads = KV_HEADS, d->num_heads = KV_HEADS * group, d->head_dim = dim, d->dtype = dtype;
    d->window_left = r.window;
    if (m->has_sinks) d->extra = "has_sinks=1";
    r.cap = m->cap;
    if (r.cap > 0) snprintf(r.extra, sizeof r.extra, "logits_soft_cap=%g%s", r.cap, m->has_sinks ? ",has_sinks=1" : "");
    d->is_causal = 1, d->kv = ATTUNE_KV_PAGED, d->page_size = page, d->appends = 1, d->deadline_us = 0;
    const size_t tokens = BATCH * KEYS, kv = KV_HEADS * (size_t)dim, cache = (size_t)(BATCH * r.columns * page) * kv;
    r.q = numbers(tokens * kv * (size_t)group), r.out = numbers(tokens * kv * (size_t)group);
    r.k = numbers(tokens * kv), r.v = numbers(tokens * kv);
    r.k_cache = numbers(cache), r.v_cache = numbers(cache);
    for (size_t i = 0; i < cache; i++) ref_store(dtype, r.k_cache, i, NAN), ref_store(dtype, r.v_cache, i, NAN);
    if (m->in_i8) {
        d->kv_dtype = ATTUNE_I8, d->kv_scales = ATTUNE_SCALES_TOKEN;
        r.k_scale = numbers(cache), r.v_scale = numbers(cache);
        for (size_t i = 0; i < cache; i++) r.k_scale[i] = r.v_scale[i] = NAN;
    }
    r.table = numbers((size_t)(BATCH * r.columns));
    for (int i = 0; i < BATCH * r.columns; i++) r.table[i] = BATCH * r.columns - 1 - i;
    return r;
}

static void close_run(run *r) {
    void *const all[] = {r->q, r->k, r->v, r->k_cache, r->v_cache, r->out, r->table, r->k_scale, r->v_scale};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void put_tokens(run *r, const int counts[BATCH]) {
    const int heads[] = {KV_HEADS * r->group, KV_HEADS, KV_HEADS};
    char *const data[] = {r->q, r->k, r->v};
    for (int b = 0; b < BATCH; b++) {
        r->starts[b + 1] = r->starts[b] + counts[b];
        for (int i = 0; i < counts[b]; i++)
            for (int t = 0; t < 3; t++)
                for (int h = 0; h < heads[t]; h++)
                    for (int d = 0; d < r->dim; d++)
                        ref_store(r->desc.dtype, data[t], (size_t)(((r->starts[b] + i) * heads[t] + h) * r->dim + d),
                                  t && r->lens[b] + i >= r->unseen ? NAN : element(t, b, r->lens[b] + i, h, d));
        r->lens[b] += counts[b];
    }
}

static void check_row(const run *r, int b, int position, int token, int h) {
    double weights[KEYS], largest = r->sinks ? (double)r->sinks[h] : -INFINITY;
    const int first = r->window < 0 || position < r->window ? 0 : position - r->window;
    for (int j = first; j <= position; j++) {
        double dot = 0;
        for (int d = 0; d < r->dim; d++) dot += element(0, b, position, h, d) * element(1, b, j, h / r->group, d);
        weights[j] = dot / sqrt(r->dim);
        if (r->cap > 0) weights[j] = r->cap * tanh(weights[j] / r->cap);
        largest = fmax(largest, weights[j]);
    }
    double sum = r->sinks ? exp((double)r->sinks[h] - largest) : 0;
    for (int j = first; j <= position; j++) sum += weights[j] = exp(weights[j] - largest);
    for (int d = 0; d < r->dim; d++) {
        double wanted = 0;
        for (int j = first; j <= position; j++) wanted += weights[j] * element(2, b, j, h / r->group, d) / sum;
        const size_t at = (size_t)((token * KV_HEADS * r->group + h) * r->dim + d);
        const double got = (double)ref_load(r->desc.dtype, r->out, at);
        if (!(fabs(got - wanted) < (r->k_scale ? 2e-2 : r->desc.dtype == ATTUNE_F32 ? 1e-5 : 1e-2)))
            fail_msg("%d columns, window %d, %s sinks: sequence %d, position %d, head %d, column %d: %g, not %g",
                     r->dim, r->window, r->sinks ? "with" : "no", b, position, h, d, got, wanted);
    }
}

/* By a plan of the step, in as much memory as it says, and then without one. */
static void run_step(const run *r, attune_attention *attention, attune_step *step) {
    const size_t bytes = (size_t)step->cu_seqlens_q[BATCH] * (size_t)(KV_HEADS * r->group * r->dim) * 2;
    char *const planned = numbers(bytes);
    attune_step_plan *plan;
    if (attune_step_plan_create(attention, step, &plan) ||
        attune_step_plan_workspace_size(plan, step, &step->workspace_bytes))
        fail_msg("%s", attune_last_message());
    if (step->workspace_bytes) assert_int_equal(posix_memalign(&step->workspace, 64, step->workspace_bytes), 0);
    if (attune_step_plan_run(plan, step)) fail_msg("%s", attune_last_message());
    memcpy(planned, r->out, bytes);
    memset(r->out, 0, bytes);
    attune_step_plan_destroy(plan);
    free(step->workspace);
    step->workspace = NULL, step->workspace_bytes = 0;
    if (attune_attention_run(attention, step)) fail_msg("%s", attune_last_message());
    assert_memory_equal(planned, r->out, bytes);
    free(planned);
}

static void take_step(run *r, attune_attention *attention, const int counts[BATCH]) {
    attune_step step = ATTUNE_STEP_INIT;
    put_tokens(r, counts);
    step.batch = BATCH;
    step.q.data = r->q, step.k.data = r->k, step.v.data = r->v, step.out.data = r->out;
    step.k_cache.data = r->k_cache, step.v_cache.data = r->v_cache;
    step.k_scale.data = r->k_scale, step.v_scale.data = r->v_scale;
    step.cu_seqlens_q = r->starts, step.kv_lens = r->lens;
    step.block_table = r->table, step.max_pages = r->columns, step.num_pages = BATCH * r->columns;
    int64_t heads = KV_HEADS * r->group;
    const attune_dltensor sinks = {.data = (void *)(uintptr_t)r->sinks,
                                   .device_type = 1,
                                   .ndim = 1,
                                   .dtype_code = 2,
                                   .dtype_bits = 32,
                                   .dtype_lanes = 1,
                                   .shape = &heads};
    const attune_binding binding = {"sinks", &sinks};
    if (r->sinks) step.bindings = &binding, step.num_bindings = 1;
    run_step(r, attention, &step);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < counts[b] && r->lens[b] - counts[b] + i < r->unseen; i++)
            for (int h = 0; h < KV_HEADS * r->group; h++)
                check_row(r, b, r->lens[b] - counts[b] + i, r->starts[b] + i, h);
}

static void compute(const char *isa, const model *m) {
    attune_context *const context = tier0_context(isa);
    attune_attention *attention;
    run r = open_run(m);
    if (r.cap > 0) r.desc.extra = r.extra;
    if (attune_attention_create(context, &r.desc, &attention)) fail_msg("%s", attune_last_message());
    for (int s = 0; s < STEPS; s++) take_step(&r, attention, queries[s]);
    if (!tier0_hits || vm_hits)
        fail_msg("%s, %d columns, groups of %d, pages of %d: the virtual machine", isa, m->dim, m->group, m->page);
    attune_attention_destroy(attention);
    attune_context_destroy(context);
    close_run(&r);
}

static void every_step_is_machine_code(void **state) {
    (void)state;
    static const model models[] = {
        {ATTUNE_BF16, 4, 128, 16, 0, false, false}, {ATTUNE_BF16, 8, 64, 128, 0, false, false},
        {ATTUNE_BF16, 1, 112, 16, 0, false, false}, {ATTUNE_F16, 3, 80, 32, 0, false, false},
        {ATTUNE_BF16, 2, 256, 64, 0, false, false}, {ATTUNE_F32, 5, 64, 16, 0, false, false},
        {ATTUNE_BF16, 8, 64, 16, 13, true, false},  {ATTUNE_F32, 2, 96, 16, 20, false, false},
        {ATTUNE_F32, 4, 128, 64, 0, true, false},   {ATTUNE_BF16, 40, 64, 16, 0, false, false},
        {ATTUNE_BF16, 4, 64, 32, 0, false, true},   {ATTUNE_F32, 2, 128, 16, 9, true, true},
        {ATTUNE_BF16, 2, 256, 16, 0, .cap = 50},    {ATTUNE_F32, 4, 128, 64, 12, true, .cap = 0.5},
    };
    for (size_t i = 0; i < TIER0_NUM_ISAS; i++)
        for (size_t m = 0; m < sizeof models / sizeof *models && tier0_runs_here(tier0_isas[i]); m++)
            compute(tier0_isas[i], &models[m]);
}

/* Later keys of the same prompt. Keys beyond the end of a sequence are NaN in all of these tests. */
static void nan_is_not_seen_by_rows_before_it(void **state) {
    (void)state;
    static const int few[BATCH] = {7, 2, 5};
    for (size_t i = 0; i < TIER0_NUM_ISAS; i++)
        for (int dtype = ATTUNE_F32; dtype <= ATTUNE_BF16 && tier0_runs_here(tier0_isas[i]); dtype++)
            for (int has_few = 0; has_few < 2; has_few++) {
                attune_context *const context = tier0_context(tier0_isas[i]);
                attune_attention *attention;
                const model m = {(attune_dtype)dtype, has_few ? 4 : 1, 64, 16, 0, false, false};
                run r = open_run(&m);
                r.unseen = has_few ? 3 : 20;
                if (attune_attention_create(context, &r.desc, &attention)) fail_msg("%s", attune_last_message());
                take_step(&r, attention, has_few ? few : queries[0]);
                attune_attention_destroy(attention);
                attune_context_destroy(context);
                close_run(&r);
            }
}

/* While the compiler works behind the first step. */
static void deadlines_are_met_by_machine_code(void **state) {
    (void)state;
    const attune_context_options options = {
        .struct_size = sizeof options, .cache_dir = "", .max_workers = 1, .event = tier0_note};
    attune_context *context;
    attune_attention *attention;
    const model m = {ATTUNE_BF16, 4, 128, 16, 0, false, false};
    run r = open_run(&m);
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    tier0_forget();
    if (attune_attention_create(context, &r.desc, &attention)) fail_msg("%s", attune_last_message());
    take_step(&r, attention, queries[0]);
    assert_true(tier0_hits > 0);
    assert_int_equal(vm_hits, 0);
    attune_attention_destroy(attention);
    attune_context_destroy(context);
    close_run(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_bits_of_its_ir),
        cmocka_unit_test(reproducible_steps_have_the_same_bits),
        cmocka_unit_test(threads_of_the_caller_run_it),
        cmocka_unit_test(others_get_none),
        cmocka_unit_test(every_step_is_machine_code),
        cmocka_unit_test(nan_is_not_seen_by_rows_before_it),
        cmocka_unit_test(deadlines_are_met_by_machine_code),
    };
    return cmocka_run_group_tests(tests, tier0_setup, NULL);
}
