/* Linear attention, its convolution and the index by the machine code of tier 0: who gets it, and that its bits are
 * those of kernels that are compiled for the description. */
#include <attune.h>

#include "support/engine/tier0.h"
#include "support/statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Tensors ---- */

static uint32_t state_of_numbers;

/* Numbers in f32 or bf16, from -1 to below 1, or from -1 to 0. */
static void *numbers(attune_dtype dtype, int64_t count, bool is_negative) {
    uint32_t *const words = calloc((size_t)count, sizeof *words);
    uint16_t *const halves = (uint16_t *)(void *)words;
    assert_non_null(words);
    for (int64_t i = 0; i < count; i++) {
        state_of_numbers = state_of_numbers * 1664525u + 1013904223u;
        float x = (float)(state_of_numbers >> 8) / (1 << 23) - 1;
        if (is_negative && x > 0) x = -x;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == ATTUNE_BF16)
            halves[i] = (uint16_t)(bits >> 16);
        else
            words[i] = bits;
    }
    return words;
}

static size_t bytes_of(attune_dtype dtype) { return dtype == ATTUNE_BF16 ? 2 : 4; }

static bool has_operators(const char *isa) { return strcmp(isa, "x86-64") != 0 && tier0_runs_here(isa); }

static attune_context *compiling_context(const char *isa) {
    const attune_context_options options = {.struct_size = sizeof options, .cache_dir = "", .isa = isa};
    attune_context *context;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    return context;
}

/* ---- Linear attention ---- */

enum { TOKENS = 21, SEQUENCES = 3, STATES = 4 };
static const int32_t prompts[] = {0, 17, 17, TOKENS}, tokens_alone[] = {0, 1, 2, 3}, ids[] = {2, 0, 3};

typedef struct result {
    void *out, *state;
    size_t out_bytes, state_bytes;
} result;

static void free_result(result *r) {
    free(r->out);
    free(r->state);
}

/* A step in a context: the same tensors each time. */
static result run_linear(attune_context *context, const attune_linear_desc *d, const int32_t *starts,
                         bool is_interpreted) {
    const int64_t kv = d->num_kv_heads ? d->num_kv_heads : d->num_heads, k = d->num_k_heads ? d->num_k_heads : kv;
    const int64_t dim = d->head_dim, dim_v = d->head_dim_v ? d->head_dim_v : dim, out_count = TOKENS * kv * dim_v;
    const int64_t decays = TOKENS * kv * (d->decay == ATTUNE_DECAY_KEY ? dim : 1), states = STATES * kv * dim * dim_v;
    attune_linear *linear;
    attune_linear_step s = ATTUNE_LINEAR_STEP_INIT;
    state_of_numbers = 7;
    result r = {numbers(d->dtype, out_count, false), numbers(ATTUNE_F32, states, false),
                (size_t)out_count * bytes_of(d->dtype), (size_t)states * 4};
    s.batch = SEQUENCES, s.cu_seqlens = starts, s.num_states = STATES, s.state_ids = ids;
    s.q.data = numbers(d->dtype, TOKENS * d->num_heads * dim, false);
    s.k.data = numbers(d->dtype, TOKENS * k * dim, false), s.v.data = numbers(d->dtype, out_count, false);
    s.decay.data = numbers(d->decay_dtype, decays, true), s.beta.data = numbers(d->beta_dtype, TOKENS * kv, false);
    s.out.data = r.out, s.state.data = r.state;
    if (attune_linear_create(context, d, &linear)) fail_msg("%s", attune_last_message());
    if (is_interpreted ? attune_linear_run_interpreted(linear, &s) : attune_linear_run(linear, &s))
        fail_msg("%s", attune_last_message());
    attune_linear_destroy(linear);
    const void *const inputs[] = {s.q.data, s.k.data, s.v.data, s.decay.data, s.beta.data};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) free((void *)(uintptr_t)inputs[i]);
    return r;
}

static void assert_same(const result *a, const result *b) {
    assert_memory_equal(a->out, b->out, a->out_bytes);
    assert_memory_equal(a->state, b->state, a->state_bytes);
}

/* Qwen3-Next, Kimi Linear, Olmo Hybrid, Mamba 2, lightning attention, small heads; and rules without decay or beta. */
#define LINEAR(...)                                                                                                    \
    {.struct_size = sizeof(attune_linear_desc), .scale = __builtin_nan(""), .reproducible = 1, __VA_ARGS__}
#define GATED_DELTA(its_decay) .rule = ATTUNE_GATED_DELTA, .decay = (its_decay), .has_beta = 1
static const attune_linear_desc descriptions[] = {
    LINEAR(.num_heads = 2, .num_k_heads = 2, .num_kv_heads = 4, .head_dim = 128, .dtype = ATTUNE_BF16,
           .beta_dtype = ATTUNE_BF16, .qk_norm_eps = 1e-6, GATED_DELTA(ATTUNE_DECAY_HEAD)),
    LINEAR(.num_heads = 3, .head_dim = 128, GATED_DELTA(ATTUNE_DECAY_HEAD)),
    LINEAR(.num_heads = 2, .head_dim = 128, .dtype = ATTUNE_BF16, .qk_norm_eps = 1e-6, GATED_DELTA(ATTUNE_DECAY_KEY)),
    LINEAR(.num_heads = 3, .head_dim = 96, .head_dim_v = 192, .qk_norm_eps = 1e-6, GATED_DELTA(ATTUNE_DECAY_HEAD)),
    LINEAR(.num_heads = 1, .num_k_heads = 1, .num_kv_heads = 3, .head_dim = 128, .head_dim_v = 64, .dtype = ATTUNE_BF16,
           .decay_dtype = ATTUNE_BF16, .rule = ATTUNE_GATED, .decay = ATTUNE_DECAY_HEAD),
    LINEAR(.num_heads = 2, .head_dim = 64, .dtype = ATTUNE_BF16, .rule = ATTUNE_GATED, .decay = ATTUNE_DECAY_HEAD),
    LINEAR(.num_heads = 2, .head_dim = 256, .dtype = ATTUNE_BF16, .rule = ATTUNE_LINEAR),
    LINEAR(.num_heads = 2, .head_dim = 16, .head_dim_v = 64, .dtype = ATTUNE_BF16, .rule = ATTUNE_DELTA),
    LINEAR(.num_heads = 2, .head_dim = 64, .rule = ATTUNE_DELTA, .has_beta = 1, .beta_dtype = ATTUNE_BF16),
    LINEAR(.num_heads = 3, .head_dim = 128, .qk_norm_eps = 1e-6, GATED_DELTA(ATTUNE_DECAY_KEY)),
    LINEAR(.num_heads = 1, .num_k_heads = 1, .num_kv_heads = 3, .head_dim = 128, .head_dim_v = 64, .rule = ATTUNE_GATED,
           .decay = ATTUNE_DECAY_HEAD),
    LINEAR(.num_heads = 2, .head_dim = 64, .rule = ATTUNE_LINEAR),
};
enum { NUM_DESCRIPTIONS = sizeof descriptions / sizeof *descriptions };

static void check_linear(const char *isa, const attune_linear_desc *d, const int32_t *starts) {
    attune_context *const bare = tier0_context(isa), *const compiling = compiling_context(isa);
    result by_tier0 = run_linear(bare, d, starts, false), own = run_linear(compiling, d, starts, false),
           interpreted = run_linear(bare, d, starts, true);
    assert_int_equal(tier0_hits, 1);
    assert_int_equal(vm_hits, 0);
    assert_same(&by_tier0, &own);
    assert_same(&by_tier0, &interpreted);
    free_result(&by_tier0);
    free_result(&own);
    free_result(&interpreted);
    attune_context_destroy(bare);
    attune_context_destroy(compiling);
}

static void linear_attention_has_the_same_bits(void **state) {
    (void)state;
    for (int t = 0; t < TIER0_NUM_ISAS; t++)
        for (int i = 0; i < NUM_DESCRIPTIONS && has_operators(tier0_isas[t]); i++) {
            check_linear(tier0_isas[t], &descriptions[i], prompts);
            check_linear(tier0_isas[t], &descriptions[i], tokens_alone);
        }
}

/* Without `reproducible`, too, a prompt is computed token by token. */
static void prompts_have_the_bits_of_reproducible(void **state) {
    (void)state;
    attune_linear_desc d = descriptions[0];
    attune_context *const bare = tier0_context(NULL);
    result reproducible = run_linear(bare, &d, prompts, false);
    d.reproducible = 0;
    result any = run_linear(bare, &d, prompts, false);
    assert_int_equal(vm_hits, 0);
    assert_same(&reproducible, &any);
    free_result(&reproducible);
    free_result(&any);
    attune_context_destroy(bare);
}

/* The virtual machine computes what tier 0 has no kernel for. */
static void others_are_for_the_virtual_machine(void **state) {
    (void)state;
    static const attune_linear_desc others[] = {
        LINEAR(.num_heads = 2, .head_dim = 24, .head_dim_v = 64, GATED_DELTA(ATTUNE_DECAY_HEAD)),
        LINEAR(.num_heads = 2, .head_dim = 64, .head_dim_v = 96, GATED_DELTA(ATTUNE_DECAY_HEAD)),
        LINEAR(.num_heads = 1, .head_dim = 272, .head_dim_v = 64, GATED_DELTA(ATTUNE_DECAY_HEAD)),
        LINEAR(.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, GATED_DELTA(ATTUNE_DECAY_HEAD)),
        LINEAR(.num_heads = 2, .head_dim = 64, .rule = ATTUNE_GATED, .decay = ATTUNE_DECAY_KEY),
        LINEAR(.num_heads = 2, .head_dim = 64, .dtype = ATTUNE_F16, GATED_DELTA(ATTUNE_DECAY_HEAD)),
        LINEAR(.num_heads = 2, .head_dim = 64, .state_dtype = ATTUNE_BF16, GATED_DELTA(ATTUNE_DECAY_HEAD)),
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        attune_context *const bare = tier0_context(NULL);
        result r = run_linear(bare, &others[i], tokens_alone, false);
        assert_int_equal(tier0_hits, 0);
        assert_int_equal(vm_hits, 1);
        free_result(&r);
        attune_context_destroy(bare);
    }
}

/* Callers of attune_ir_run fill in the parameters of the text, which a general kernel has not. */
static void a_text_has_its_own_parameters(void **state) {
    (void)state;
    static const char text[] = "op=linear,num_heads=2,head_dim=64,dtype=bf16,rule=delta,kernel=few";
    const attune_linear_desc d = LINEAR(.num_heads = 2, .head_dim = 64, .dtype = ATTUNE_BF16, .rule = ATTUNE_DELTA);
    attune_context *const context = tier0_context(NULL);
    attune_kernel *kernel, *again, *written;
    const attune_ir_parameter *given, *wanted;
    size_t count, bytes;
    void *ir;
    for (int i = 0; i < 2; i++) { /* before and after a step, which the general kernel computes */
        assert_ok(attune_description_compile(context, text, &kernel));
        assert_ok(attune_description_compile(context, text, &again));
        assert_ptr_equal(kernel, again);
        assert_ok(attune_description_emit(context, text, ATTUNE_STAGE_IR, &ir, &bytes));
        assert_ok(attune_ir_compile(context, ir, &written));
        assert_ok(attune_ir_parameters(kernel, &given, &count));
        assert_ok(attune_ir_parameters(written, &wanted, &bytes));
        assert_int_equal(count, bytes);
        for (size_t p = 0; p < count; p++) assert_string_equal(given[p].name, wanted[p].name);
        attune_kernel_release(kernel);
        attune_kernel_release(again);
        attune_kernel_release(written);
        attune_free(context, ir);
        tier0_forget();
        result r = run_linear(context, &d, tokens_alone, false);
        assert_int_equal(vm_hits, 0);
        free_result(&r);
    }
    attune_context_destroy(context);
}

/* ---- The convolution ---- */

enum { CHANNELS = 70, TAPS = 4 };

/* Rows of channels, or channels of tokens. */
static result run_conv(attune_context *context, attune_dtype dtype, bool is_by_token) {
    const int64_t count = TOKENS * CHANNELS, kept = STATES * (TAPS - 1) * CHANNELS;
    attune_conv_desc d = ATTUNE_CONV_DESC_INIT;
    attune_conv_step s = ATTUNE_CONV_STEP_INIT;
    attune_conv *conv;
    d.channels = CHANNELS, d.taps = TAPS, d.has_silu = 1, d.dtype = dtype;
    state_of_numbers = 5;
    result r = {numbers(dtype, count, false), numbers(dtype, kept, false), (size_t)count * bytes_of(dtype),
                (size_t)kept * bytes_of(dtype)};
    s.batch = SEQUENCES, s.cu_seqlens = prompts, s.num_states = STATES, s.state_ids = ids;
    s.x.data = numbers(dtype, count, false), s.weights = numbers(dtype, CHANNELS * TAPS, false);
    s.out.data = r.out, s.state.data = r.state;
    if (is_by_token) s.x.token = s.out.token = 1, s.x.head = s.out.head = TOKENS, s.x.batch = s.out.batch = count;
    if (attune_conv_create(context, &d, &conv) || attune_conv_run(conv, &s)) fail_msg("%s", attune_last_message());
    attune_conv_destroy(conv);
    free((void *)(uintptr_t)s.x.data);
    free((void *)(uintptr_t)s.weights);
    return r;
}

static void convolutions_have_the_same_bits(void **state) {
    (void)state;
    for (int t = 0; t < TIER0_NUM_ISAS; t++)
        for (int i = 0; i < 4 && has_operators(tier0_isas[t]); i++) {
            attune_context *const bare = tier0_context(tier0_isas[t]);
            attune_context *const compiling = compiling_context(tier0_isas[t]);
            const attune_dtype dtype = i % 2 ? ATTUNE_BF16 : ATTUNE_F32;
            result by_tier0 = run_conv(bare, dtype, i / 2), own = run_conv(compiling, dtype, i / 2);
            assert_int_equal(tier0_hits, 1);
            assert_int_equal(vm_hits, 0);
            assert_same(&by_tier0, &own);
            free_result(&by_tier0);
            free_result(&own);
            attune_context_destroy(bare);
            attune_context_destroy(compiling);
        }
}

/* ---- The index ---- */

enum { QUERIES = 11, KEYS = 190, PAGE = 32, PAGES = 8, MOST_IDS = 60 };
typedef enum cache { WITHOUT_PAGES, RAGGED_KEYS, IN_PAGES, NUM_CACHES } cache;

/* The ids of all queries, in the same tensors each time. */
static void run_index(attune_context *context, const attune_index_desc *d, cache kind, bool is_interpreted,
                      int32_t chosen[QUERIES * MOST_IDS]) {
    static const int32_t starts[] = {0, 3, 3, QUERIES}, keys[] = {0, 40, 70, KEYS}, lens[] = {90, 0, 61};
    static const int32_t table[3][3] = {{2, 0, 5}, {0}, {1, 7}};
    attune_index *index;
    attune_index_step s = ATTUNE_INDEX_STEP_INIT;
    state_of_numbers = 3;
    s.batch = 3, s.cu_seqlens_q = starts;
    if (kind == WITHOUT_PAGES) s.seq_kv = KEYS, s.batch = 1, s.cu_seqlens_q = NULL, s.seq_q = QUERIES;
    if (kind == RAGGED_KEYS) s.cu_seqlens_kv = keys;
    if (kind == IN_PAGES) s.kv_lens = lens, s.block_table = table[0], s.max_pages = 3, s.num_pages = PAGES;
    void *const q = numbers(d->dtype, QUERIES * d->num_heads * d->head_dim, false),
                *const k = numbers(d->dtype, PAGES * PAGE * d->head_dim, false),
                *const w = numbers(ATTUNE_F32, QUERIES * d->num_heads, false);
    s.q.data = q, s.k.data = k, s.w.data = w, s.ids = chosen;
    memset(chosen, 0, QUERIES * MOST_IDS * sizeof *chosen);
    if (attune_index_create(context, d, &index)) fail_msg("%s", attune_last_message());
    if (is_interpreted ? attune_index_run_interpreted(index, &s) : attune_index_run(index, &s))
        fail_msg("%s", attune_last_message());
    attune_index_destroy(index);
    free(q), free(k), free(w);
}

static void check_index(const char *isa, const attune_index_desc *d, cache kind) {
    static int32_t by_tier0[QUERIES * MOST_IDS], own[QUERIES * MOST_IDS], interpreted[QUERIES * MOST_IDS];
    attune_context *const bare = tier0_context(isa), *const compiling = compiling_context(isa);
    run_index(bare, d, kind, false, by_tier0);
    run_index(bare, d, kind, true, interpreted);
    run_index(compiling, d, kind, false, own);
    assert_int_equal(tier0_hits, 1);
    assert_int_equal(vm_hits, 0);
    assert_memory_equal(by_tier0, own, sizeof own);
    assert_memory_equal(by_tier0, interpreted, sizeof own);
    attune_context_destroy(bare);
    attune_context_destroy(compiling);
}

static void indexes_have_the_same_ids(void **state) {
    (void)state;
    for (int t = 0; t < TIER0_NUM_ISAS; t++)
        for (int i = 0; i < 2 * NUM_CACHES && has_operators(tier0_isas[t]); i++) {
            attune_index_desc d = ATTUNE_INDEX_DESC_INIT;
            const cache kind = (cache)(i / 2);
            d.num_heads = i % 2 ? 64 : 5, d.head_dim = 128, d.dtype = ATTUNE_BF16, d.w_dtype = ATTUNE_F32;
            d.num_ids = i % 2 ? MOST_IDS : 7, d.is_causal = i % 2;
            d.page_size = kind == IN_PAGES ? PAGE : 0;
            check_index(tier0_isas[t], &d, kind);
        }
}

static void other_indexes_are_for_the_virtual_machine(void **state) {
    (void)state;
    static const attune_index_desc others[] = {
        {.struct_size = sizeof others[0], .num_heads = 2, .head_dim = 64, .num_ids = 7, .dtype = ATTUNE_BF16},
        {.struct_size = sizeof others[0], .num_heads = 65, .head_dim = 128, .num_ids = 7, .dtype = ATTUNE_BF16},
        {.struct_size = sizeof others[0], .num_heads = 2, .head_dim = 128, .num_ids = 7},
    };
    static int32_t chosen[QUERIES * MOST_IDS];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        attune_context *const bare = tier0_context(NULL);
        run_index(bare, &others[i], RAGGED_KEYS, false, chosen);
        assert_int_equal(tier0_hits, 0);
        assert_int_equal(vm_hits, 1);
        attune_context_destroy(bare);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_attention_has_the_same_bits),
        cmocka_unit_test(prompts_have_the_bits_of_reproducible),
        cmocka_unit_test(others_are_for_the_virtual_machine),
        cmocka_unit_test(a_text_has_its_own_parameters),
        cmocka_unit_test(convolutions_have_the_same_bits),
        cmocka_unit_test(indexes_have_the_same_ids),
        cmocka_unit_test(other_indexes_are_for_the_virtual_machine),
    };
    return cmocka_run_group_tests(tests, tier0_setup, NULL);
}
