/* A user's program: linear attention, its convolution, the index, the estimate of blocks and an MLA block, through
 * attune.h alone. It prints a line for each result, and to standard error where the kernels came from. Built with
 * WITH_BUNDLE it takes them from the bundle `open`. */
#include <attune.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_BUNDLE
extern const struct at_bundle open_bundle;
#endif

enum { HEADS = 2, KV_HEADS = 4, DIM = 24, TOKENS = 21, KEYS = 96, CHANNELS = 40, TAPS = 4 };

static void check(attune_status status, const char *what) {
    if (!status) return;
    fprintf(stderr, "%s: %s\n", what, attune_last_message());
    exit(1);
}

static float *numbers(size_t count) {
    static uint32_t state = 1;
    float *const all = calloc(count, sizeof *all);
    if (!all) exit(1);
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        all[i] = (float)(state >> 8) / (1 << 24) - 0.5f;
    }
    return all;
}

/* FNV-1a of the bytes. */
static void show(const char *what, const void *data, size_t bytes) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    printf("%s %016llx\n", what, (unsigned long long)hash);
}

/* One token is a kernel of its own. */
static void run_linear(attune_context *context, int64_t tokens) {
    attune_linear_desc desc = ATTUNE_LINEAR_DESC_INIT;
    attune_linear_step step = ATTUNE_LINEAR_STEP_INIT;
    attune_linear *linear;
    desc.num_heads = HEADS, desc.num_kv_heads = KV_HEADS, desc.num_k_heads = HEADS, desc.head_dim = DIM;
    desc.rule = ATTUNE_GATED_DELTA, desc.decay = ATTUNE_DECAY_HEAD, desc.has_beta = 1, desc.qk_norm_eps = 1e-6;
    check(attune_linear_create(context, &desc, &linear), "linear");
    const size_t out = (size_t)tokens * KV_HEADS * DIM, state = (size_t)KV_HEADS * DIM * DIM;
    float *const decay = numbers((size_t)tokens * KV_HEADS);
    for (int64_t i = 0; i < tokens * KV_HEADS; i++) decay[i] -= 0.5f;
    step.batch = 1, step.seq = tokens;
    step.q.data = numbers((size_t)tokens * HEADS * DIM), step.k.data = numbers((size_t)tokens * HEADS * DIM);
    step.v.data = numbers(out), step.decay.data = decay, step.beta.data = numbers((size_t)tokens * KV_HEADS);
    step.out.data = numbers(out), step.state.data = numbers(state);
    check(attune_linear_run(linear, &step), "linear");
    show("linear out", step.out.data, out * sizeof(float));
    show("linear state", step.state.data, state * sizeof(float));
    attune_linear_destroy(linear);
}

static void run_conv(attune_context *context) {
    attune_conv_desc desc = ATTUNE_CONV_DESC_INIT;
    attune_conv_step step = ATTUNE_CONV_STEP_INIT;
    attune_conv *conv;
    desc.channels = CHANNELS, desc.taps = TAPS, desc.has_silu = 1;
    check(attune_conv_create(context, &desc, &conv), "conv");
    step.batch = 1, step.seq = TOKENS;
    step.x.data = numbers(TOKENS * CHANNELS), step.weights = numbers(CHANNELS * TAPS);
    step.out.data = numbers(TOKENS * CHANNELS), step.state.data = numbers((TAPS - 1) * CHANNELS);
    check(attune_conv_run(conv, &step), "conv");
    show("conv", step.out.data, TOKENS * CHANNELS * sizeof(float));
    attune_conv_destroy(conv);
}

static void run_index(attune_context *context) {
    attune_index_desc desc = ATTUNE_INDEX_DESC_INIT;
    attune_index_step step = ATTUNE_INDEX_STEP_INIT;
    attune_index *index;
    int32_t ids[TOKENS * 8];
    desc.num_heads = HEADS, desc.head_dim = DIM, desc.num_ids = 8, desc.is_causal = 1;
    check(attune_index_create(context, &desc, &index), "index");
    step.batch = 1, step.seq_q = TOKENS, step.seq_kv = KEYS;
    step.q.data = numbers(TOKENS * HEADS * DIM), step.k.data = numbers(KEYS * DIM);
    step.w.data = numbers(TOKENS * HEADS), step.ids = ids;
    check(attune_index_run(index, &step), "index");
    show("index", ids, sizeof ids);
    attune_index_destroy(index);
}

static void run_blocks(attune_context *context) {
    attune_blocks_desc desc = ATTUNE_BLOCKS_DESC_INIT;
    attune_blocks_step step = ATTUNE_BLOCKS_STEP_INIT;
    attune_blocks *blocks;
    float shares[HEADS * 3 * 3];
    desc.num_heads = HEADS, desc.head_dim = DIM, desc.block_size = 32, desc.stride = 8, desc.is_causal = 1;
    check(attune_blocks_create(context, &desc, &blocks), "blocks");
    step.batch = 1, step.seq_q = KEYS, step.seq_kv = KEYS;
    step.q.data = numbers(HEADS * KEYS * DIM), step.k.data = numbers(HEADS * KEYS * DIM), step.shares = shares;
    check(attune_blocks_run(blocks, &step), "blocks");
    show("blocks", shares, sizeof shares);
    attune_blocks_destroy(blocks);
}

/* One token after 16 keys: the absorbed form. */
static void run_mla(attune_context *context) {
    enum { EMBED = 48, RANK = 32, NOPE = 16, ROPE = 8, ROWS = 17 };
    attune_mla_desc desc = ATTUNE_MLA_DESC_INIT;
    attune_mla_weights w = ATTUNE_MLA_WEIGHTS_INIT;
    attune_mla_step step = ATTUNE_MLA_STEP_INIT;
    attune_mla *mla;
    float out[EMBED];
    const int32_t length = ROWS;
    desc.embed_dim = EMBED, desc.num_heads = HEADS, desc.kv_lora_rank = RANK;
    desc.qk_nope_head_dim = NOPE, desc.qk_rope_head_dim = ROPE, desc.form = ATTUNE_MLA_ABSORBED;
    w.q_proj = numbers(HEADS * (NOPE + ROPE) * EMBED), w.kv_a_proj = numbers((RANK + ROPE) * EMBED);
    w.kv_a_layernorm = numbers(RANK), w.kv_b_proj = numbers(HEADS * 2 * NOPE * RANK);
    w.o_proj = numbers(EMBED * HEADS * NOPE);
    check(attune_mla_create(context, &desc, &w, &mla), "mla");
    step.batch = 1, step.seq = 1, step.kv_lens = &length;
    step.x.data = numbers(EMBED), step.out.data = out, step.cache.data = numbers(ROWS * (RANK + ROPE));
    step.cache_rows = ROWS;
    step.cos = numbers(ROWS * ROPE / 2), step.sin = numbers(ROWS * ROPE / 2), step.num_positions = ROWS;
    check(attune_mla_run(mla, &step), "mla");
    show("mla", out, sizeof out);
    attune_mla_destroy(mla);
}

int main(void) {
    attune_context *context;
    attune_statistics s = {.struct_size = sizeof s};
    check(attune_context_create(NULL, &context), "context");
#ifdef WITH_BUNDLE
    check(attune_context_add_bundle(context, &open_bundle), "bundle");
#endif
    run_linear(context, 1);
    run_linear(context, TOKENS);
    run_conv(context);
    run_index(context);
    run_blocks(context);
    run_mla(context);
    check(attune_get_statistics(context, &s), "statistics");
    fprintf(stderr, "bundle %llu, compiled %llu, without a compiler %llu\n", (unsigned long long)s.bundle_hits,
            (unsigned long long)s.compiles, (unsigned long long)s.tier0_hits);
    attune_context_destroy(context);
    return 0;
}
