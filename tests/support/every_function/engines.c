/* What engines describe: attention, linear attention and its convolution, the index, latent attention. */
#include "support/every_function/every_function.h"
#include "support/every_function/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void go_through_attentions(attune_context *context) {
    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    attune_step step = ATTUNE_STEP_INIT;
    attune_cache_size size = ATTUNE_CACHE_SIZE_INIT;
    attune_attention_info info = ATTUNE_ATTENTION_INFO_INIT;
    attune_attention *attention = NULL;
    attune_context *shared = NULL;
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
    OK(attune_attention_get_info(attention, &info));
    OK(attune_shared_context(&shared));
    CALL(attune_step_plan_destroy(plan));
    CALL(attune_attention_destroy(attention));
}

void go_through_linear_attention(attune_context *context) {
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

void go_through_convolution(attune_context *context) {
    attune_conv_desc desc = ATTUNE_CONV_DESC_INIT;
    attune_conv_step step = ATTUNE_CONV_STEP_INIT;
    attune_conv *conv = NULL;
    float x[5 * 8], weights[8 * 3], state[2][2 * 8], out[2][5 * 8];
    OK(attune_conv_desc_init(&desc, sizeof desc));
    OK(attune_conv_step_init(&step, sizeof step));
    for (int i = 0; i < 5 * 8; i++) x[i] = i % 5 ? (float)(i % 7 - 3) * 0.3f : 1e-41f;
    for (int i = 0; i < 8 * 3; i++) weights[i] = (float)(i % 4) * 1e-20f + 0.1f;
    for (int i = 0; i < 2 * 2 * 8; i++) state[i / 16][i % 16] = (float)(i % 16) * 1e-40f;
    desc.channels = 8, desc.taps = 3, desc.has_silu = 1;
    OK(attune_conv_create(context, &desc, &conv));
    step.batch = 1, step.seq = 5, step.x.data = x, step.weights = weights;
    step.state.data = state[0], step.out.data = out[0];
    OK(attune_conv_run(conv, &step));
    step.state.data = state[1], step.out.data = out[1];
    OK(attune_conv_run_interpreted(conv, &step));
    note_bytes("convolution's out", out, sizeof out);
    note_bytes("convolution's state", state, sizeof state);
    CALL(attune_conv_destroy(conv));
}

static void go_through_index_and_attention(attune_context *context, attune_index *index,
                                           const attune_index_step *index_step) {
    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    attune_step step = ATTUNE_STEP_INIT;
    attune_attention *attention = NULL;
    float rows[60 * 8], out[8];
    for (int i = 0; i < 60 * 8; i++) rows[i] = (float)(i % 11 - 5) * 0.3f;
    desc.num_heads = 1, desc.head_dim = 8, desc.layout = ATTUNE_BSHD, desc.extra = "kv_ids=query,has_kv_id_lens=1";
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

void go_through_index(attune_context *context) {
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

void go_through_key_blocks(attune_context *context) {
    enum { TOKENS = 16, DIM = 8 };
    static const int32_t lists[] = {1, -1, 0, 1}, starts[] = {0, 1, 3}, places[] = {1, 0, 1};
    attune_blocks_desc desc = ATTUNE_BLOCKS_DESC_INIT;
    attune_blocks_step step = ATTUNE_BLOCKS_STEP_INIT;
    attune_blocks *blocks = NULL;
    float rows[TOKENS * DIM], shares[2][4];
    uint8_t tables[2][4];
    OK(attune_blocks_desc_init(&desc, sizeof desc));
    OK(attune_blocks_step_init(&step, sizeof step));
    for (int i = 0; i < TOKENS * DIM; i++) rows[i] = i % 5 ? (float)(i % 7 - 3) * 0.3f : 1e-41f;
    desc.num_heads = 1, desc.head_dim = DIM, desc.block_size = 8, desc.stride = 4, desc.softmax_scale = 0.1;
    OK(attune_blocks_create(context, &desc, &blocks));
    OK(attune_blocks_prepare(blocks, TOKENS));
    step.batch = 1, step.seq_q = step.seq_kv = TOKENS, step.q.data = step.k.data = rows;
    step.shares = shares[0];
    OK(attune_blocks_run(blocks, &step));
    step.shares = shares[1];
    OK(attune_blocks_run_interpreted(blocks, &step));
    note_bytes("shares", shares, sizeof shares);
    OK(attune_blocks_from_lists(lists, 2, 2, 2, tables[0]));
    OK(attune_blocks_from_csr(starts, places, 2, 2, tables[1]));
    note_bytes("tables", tables, sizeof tables);
    CALL(attune_blocks_destroy(blocks));
}

void go_through_mla(attune_context *context) {
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
    OK(attune_mla_run_interpreted(mla, &step));
    note_bytes("mla interpreted", out, sizeof out);
    CALL(attune_mla_destroy(mla));
}
