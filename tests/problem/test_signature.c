/* The tensors and scalars of a problem, and the parameters of its kernel, which must be the same ones. */
#include "ir/text.h"
#include "nest/params.h"
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A kernel of nothing but parameters and one empty task, as text. */
static ir_kernel *declare(at_arena *arena, const attune_problem *p, mha_params *params) {
    at_error err = {0};
    ir_builder *b = ir_builder_new(arena, "signature");
    mha_declare_params(b, p, params);
    ir_phase_begin(b);
    ir_parallel(b, "task", ir_idx(b, 1));
    ir_phase_end(b);
    ir_kernel *kernel = ir_builder_finish(b, &err);
    if (!kernel) fail_msg("%s", err.message);
    return kernel;
}

static const char *const problems[] = {
    "seq_q=5,head_dim=4",
    "batch=2,num_heads=6,num_kv_heads=2,seq_q=5,seq_kv=7,head_dim=4,head_dim_v=3,has_lse=1,attn_mask_dims=bqk,"
    "attn_bias_dims=k",
    "seq_q=dynamic,seq_kv=dynamic,max_seq_q=9,max_seq_kv=8,head_dim=4,short_masks=1,attn_mask_dims=dynamic:dynamic,"
    "attn_bias_dims=3",
    "is_ragged=1,batch=3,num_heads=2,head_dim=4,has_lse=1,seq_new=dynamic,rotary_dim=4,has_position_ids=1,"
    "attn_mask_dims=qk",
    "is_ragged=1,head_dim=4,page_size=16,seq_new=1,v_in_k=1,head_dim_v=2,has_sinks=1,has_alibi_slopes=1,"
    "attn_bias_dims=hqk",
    "seq_q=dynamic,seq_kv=100,head_dim=4,page_size=16,has_kv_lens=1,seq_new=dynamic,is_causal=1,has_causal_offsets=1",
    "seq_q=3,seq_kv=9,head_dim=8,dtype=f16,bias_dtype=f64,attn_bias_dims=qk,has_lse=1,weights_mode=softmax,"
    "weights_average=1",
    "op=weights,seq_q=3,seq_kv=9,head_dim=8,has_row_ids=1,num_rows=dynamic,rotary_dim=4,rotary_interleaved=1",
    "op=weights,seq_q=3,seq_kv=9,head_dim=8,weights_mode=scaled",
    "op=rotary,batch=2,num_heads=3,seq_q=dynamic,head_dim=8,rotary_dim=4,has_position_ids=1",
    "seq_q=3,seq_kv=9,head_dim=8,seq_new=3,qk_norm_eps=1e-6",
    "op=merge,batch=2,num_heads=3,seq_q=5,head_dim=8,num_parts=4,has_lse=1",
    "batch=2,embed_dim=12,num_heads=6,num_kv_heads=2,seq_q=5,has_lse=1,attn_mask_dims=bqk,w_dtype=bf16",
    "batch=2,embed_dim=12,kv_embed_dim=7,v_embed_dim=5,out_dim=9,num_heads=3,seq_q=dynamic,seq_kv=dynamic,dtype=f16",
    "embed_dim=12,num_heads=3,seq_q=dynamic,max_seq_kv=9,attn_bias_dims=qk,weights_mode=softmax,is_causal=1",
    "embed_dim=12,num_heads=3,seq_q=dynamic,seq_kv=9,seq_new=dynamic,has_kv_lens=1,x_strides=0:24:2",
    "embed_dim=12,kv_embed_dim=7,num_heads=3,seq_q=1,seq_kv=9,seq_new=dynamic",
    "is_ragged=1,batch=3,embed_dim=12,v_embed_dim=5,num_heads=3,rotary_dim=4,has_position_ids=1,attn_mask_dims=qk",
    "is_ragged=1,batch=3,embed_dim=12,kv_embed_dim=5,num_heads=3,max_seq_q=9,max_seq_kv=8",
    "is_ragged=1,batch=3,embed_dim=12,num_heads=3,page_size=4,has_kv_lens=1,seq_new=1,v_in_k=1,head_dim_v=2",
    "embed_dim=12,num_heads=3,seq_q=2,seq_kv=9,kv_projected=1,no_out_projection=1,head_dim_v=7",
    "batch=2,embed_dim=12,num_heads=6,num_kv_heads=2,seq_q=5,low_rank=3,low_rank_heads=1,weights_mode=scaled",
    "embed_dim=12,num_heads=3,seq_q=5,low_rank=3,low_rank_shared=1,w_dtype=f64",
};
enum { NUM_PROBLEMS = sizeof problems / sizeof *problems };

/* Sizes of some call. */
static mha_sizes sizes_of(const attune_problem *p) {
    mha_sizes sizes;
    mha_compiled_sizes(p, &sizes);
    sizes.of[MHA_BATCH] = p->batch;
    sizes.of[MHA_KV_HEADS] = p->num_kv_heads;
    for (mha_size s = 0; s < MHA_NUM_SIZES; s++)
        if (mha_is_parameter(p, s) && sizes.of[s] < 0) sizes.of[s] = 4 + (int64_t)s;
    if (mha_is_parameter(p, MHA_SEQ_Q)) sizes.of[MHA_SEQ_Q] = 8;
    if (mha_is_parameter(p, MHA_SEQ_KV)) sizes.of[MHA_SEQ_KV] = 8;
    if (mha_is_parameter(p, MHA_MASK_KV)) sizes.of[MHA_MASK_KV] = 6;
    mha_derive_sizes(p, &sizes);
    return sizes;
}

/* The value of an expression of parameters. */
static int64_t value_of(const ir_expr *e, const ir_kernel *kernel, const int64_t *scalars) {
    if (e->op == IR_CONST) return e->value.i;
    if (e->op == IR_ADD) return value_of(e->args[0], kernel, scalars) + value_of(e->args[1], kernel, scalars);
    if (e->op == IR_MUL) return value_of(e->args[0], kernel, scalars) * value_of(e->args[1], kernel, scalars);
    assert_int_equal(e->op, IR_VAR);
    size_t n = 0;
    for (uint32_t i = 0; i < kernel->num_params; i++) {
        if (!kernel->params[i].var) continue;
        if (kernel->params[i].var == e->value.var) return scalars[n];
        n++;
    }
    fail_msg("%s is no parameter", e->value.var->name);
    return 0;
}

static bool holds(const ir_expr *e, const ir_kernel *kernel, const int64_t *scalars) {
    const int64_t x = value_of(e->args[0], kernel, scalars), y = value_of(e->args[1], kernel, scalars);
    assert_true(e->op == IR_GE || e->op == IR_LE);
    return e->op == IR_GE ? x >= y : x <= y;
}

/* Tensor by tensor: the buffer parameter has its name, type, dims and strides under the scalars of a call. */
static void test_params_match_scalars(void **state) {
    (void)state;
    for (int n = 0; n < NUM_PROBLEMS; n++) {
        const attune_problem p = problem_canonical(problems[n]);
        at_arena arena;
        at_arena_init(&arena, NULL);
        mha_params params;
        const ir_kernel *kernel = declare(&arena, &p, &params);
        mha_tensor tensors[MHA_NUM_TENSORS];
        const size_t count = mha_tensors(&p, tensors);
        const mha_sizes sizes = sizes_of(&p);
        int64_t strides[MHA_NUM_TENSORS][4], scalars[MHA_MAX_SCALARS];
        for (size_t t = 0; t < count; t++)
            for (int d = 0; d < 4; d++) strides[t][d] = 100 * (int64_t)t + 10 * d + 7;
        const mha_parameters taken = mha_parameters_of(&p);
        const size_t num_scalars =
            mha_scalars(&p, &taken, &sizes, tensors, count, (const int64_t(*)[4])strides, scalars);
        assert_int_equal(kernel->num_params, num_scalars + count);

        size_t cos = 0;
        for (uint32_t i = 0, t = 0; i < kernel->num_params; i++) {
            const ir_buffer *buffer = kernel->params[i].buffer;
            if (!buffer) continue;
            const mha_tensor *tensor = &tensors[t];
            assert_ptr_equal(params.tensor[tensor->id], buffer);
            assert_string_equal(buffer->name, tensor->id == MHA_OUT ? "o" : tensor->name);
            assert_int_equal(buffer->type.elem, tensor->elem);
            assert_int_equal(buffer->access, tensor->access);
            assert_int_equal(buffer->num_dims, tensor->rank);
            if (tensor->id == MHA_COS) cos = t;
            for (int d = 0; d < tensor->rank; d++) {
                assert_int_equal(value_of(buffer->dims[d], kernel, scalars), sizes.of[tensor->dims[d]]);
                if (tensor->has_strides)
                    assert_int_equal(value_of(buffer->strides[d], kernel, scalars),
                                     d == tensor->rank - 1 ? tensor->inner_stride : strides[t][d]);
            }
            if (tensor->id == MHA_COS || tensor->id == MHA_SIN) {
                assert_int_equal(value_of(buffer->strides[0], kernel, scalars), strides[cos][0]);
                assert_int_equal(value_of(buffer->strides[1], kernel, scalars), p.rotary_dim / 2);
            }
            t++;
        }
        for (mha_size s = 0; s < MHA_NUM_SIZES; s++)
            if (params.size[s] && sizes.of[s] >= 0)
                assert_int_equal(value_of(params.size[s], kernel, scalars), sizes.of[s]);
        for (uint32_t i = 0; i < kernel->num_assumes; i++) assert_true(holds(kernel->assumes[i], kernel, scalars));
        at_arena_free(&arena);
    }
}

/* The kernel's text, for one problem of each kind, as a reader sees it. */
static void test_declarations(void **state) {
    (void)state;
    static const struct {
        const char *problem, *says[6];
    } cases[] = {
        {"num_heads=6,num_kv_heads=2,seq_q=5,seq_kv=7,head_dim=4,attn_mask_dims=k,has_lse=1",
         {"q: f32[batch, num_kv_heads * 3, 5, 4] strides [q_sb, q_sh, q_ss, 1] in",
          "o: f32[batch, num_kv_heads * 3, 5, 4] strides [o_sb, o_sh, o_ss, 1] out",
          "lse: f32[batch, num_kv_heads * 3, 5] strides [lse_sb, lse_sh, 1] out",
          "attn_mask: i8[batch, num_kv_heads * 3, 5, 7] strides [attn_mask_sb, attn_mask_sh, attn_mask_ss, 1] in"}},
        {"seq_q=dynamic,head_dim=4,max_seq_q=9,attn_bias_dims=q,dtype=f64",
         {"assume seq_q <= 9", "assume seq_kv >= 0",
          "attn_bias: f64[batch, num_kv_heads, seq_q, seq_kv] strides [attn_bias_sb, attn_bias_sh, attn_bias_ss, 0] "
          "in"}},
        {"is_ragged=1,head_dim=4,page_size=16,seq_new=1,rotary_dim=2,k_dtype=f16",
         {"q: f32[1, num_kv_heads, total_q, 4]",
          "k: f16[num_pages, num_kv_heads, 16, 4] strides [k_sb, k_sh, k_ss, 1] inout",
          "k_new: f16[1, num_kv_heads, total_q, 4]", "cu_seqlens_kv: i32[batch + 1] in",
          "sin: f32[batch, rotary_positions, 1] strides [rotary_batch_stride, 1, 1] in",
          "block_table: i32[batch, max_pages] in"}},
        {"seq_q=dynamic,head_dim=4,short_masks=1,attn_mask_dims=dynamic",
         {"assume mask_seq_kv <= seq_kv", "attn_mask: i8[batch, num_kv_heads, seq_q, mask_seq_kv]"}},
        {"embed_dim=12,num_heads=6,num_kv_heads=2,seq_q=5,attn_mask_dims=k,has_lse=1",
         {"x: f32[batch, 5, 12] strides [x_sb, x_ss, 1] in", "o: f32[batch, 5, 12] strides [o_sb, o_ss, 1] out",
          "lse: f32[batch, 6, 5] strides [lse_sb, lse_sh, 1] out", "attn_mask: i8[batch, 6, 5, 5]"}},
        {"embed_dim=12,num_heads=3,seq_q=dynamic,max_seq_q=9,attn_bias_dims=q",
         {"assume seq_q <= 9", "x: f32[batch, seq_q, 12]", "attn_bias: f32[batch, 3, seq_q, seq_q]"}},
        {"is_ragged=1,embed_dim=12,v_embed_dim=5,num_heads=3,dtype=bf16",
         {"x: bf16[1, total_q, 12]", "x_v: bf16[1, total_q, 5]", "cu_seqlens_q: i32[batch + 1] in"}},
        {"embed_dim=12,kv_embed_dim=7,num_heads=3,seq_q=1,seq_kv=9,seq_new=dynamic,k_dtype=f16",
         {"x_kv: f32[batch, seq_new, 7]", "k: f16[batch, 3, 9, 4] strides [k_sb, k_sh, k_ss, 1] inout"}},
        {"embed_dim=12,num_heads=3,seq_q=5,no_out_projection=1,low_rank=2,weights_mode=softmax,w_dtype=f64",
         {"o: f32[batch, 3, 5, 4] strides [o_sb, o_sh, o_ss, 1] out", "keys_low: f64[1, 2, 5] in",
          "values_low: f64[1, 2, 5] in", "weights: f32[batch, 3, 5, 2]"}},
        {"op=merge,seq_q=5,head_dim=8,num_parts=4,has_lse=1",
         {"parts: f32[4, part_rows, 8] in", "parts_lse: f32[4, part_rows] in", "lse: f32[batch, num_kv_heads, 5]"}},
        {"op=weights,seq_q=5,head_dim=8,weights_average=1,has_row_ids=1,num_rows=2",
         {"lse: f32[batch, num_kv_heads, 5] strides [lse_sb, lse_sh, 1] in", "weights: f32[batch, 1, 2, 5]",
          "row_ids: i32[2] in"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_problem p = problem_canonical(cases[i].problem);
        at_arena arena;
        at_arena_init(&arena, NULL);
        mha_params params;
        const ir_kernel *kernel = declare(&arena, &p, &params);
        at_string text;
        at_string_init(&text, NULL);
        ir_print(kernel, &text);
        for (int s = 0; s < 6 && cases[i].says[s]; s++)
            if (!strstr(text.data, cases[i].says[s])) fail_msg("no '%s' in\n%s", cases[i].says[s], text.data);
        at_string_free(&text);
        at_arena_free(&arena);
    }
}

/* Sizes of a block that are others in disguise: the table of queries serves keys as well. */
static void test_keys_that_follow(void **state) {
    (void)state;
    at_arena arena;
    at_arena_init(&arena, NULL);
    mha_params params;
    const attune_problem p = problem_canonical("is_ragged=1,batch=3,embed_dim=12,num_heads=3");
    const ir_kernel *kernel = declare(&arena, &p, &params);
    assert_non_null(kernel);
    assert_ptr_equal(params.tensor[MHA_CU_SEQLENS_KV], params.tensor[MHA_CU_SEQLENS_Q]);
    assert_ptr_equal(params.size[MHA_TOTAL_KV], params.size[MHA_TOTAL_Q]);
    assert_ptr_equal(params.size[MHA_SEQ_KV], params.size[MHA_SEQ_Q]);
    assert_true(!mha_is_parameter(&p, MHA_TOTAL_KV) && !mha_is_parameter(&p, MHA_SEQ_KV));
    const attune_problem cached = problem_canonical("embed_dim=12,seq_q=dynamic,seq_kv=9,seq_new=dynamic");
    assert_non_null(declare(&arena, &cached, &params));
    assert_ptr_equal(params.size[MHA_SEQ_NEW], params.size[MHA_SEQ_Q]);
    assert_true(!mha_is_parameter(&cached, MHA_SEQ_NEW) && !mha_is_parameter(&cached, MHA_KV_HEADS));
    at_arena_free(&arena);
}

/* Where the pointers and strides of a call are found. */
static void test_offsets(void **state) {
    (void)state;
    const attune_problem p = problem_canonical(problems[1]);
    mha_tensor t[MHA_NUM_TENSORS];
    assert_int_equal(mha_tensors(&p, t), 7);
    static const mha_tensor_id ids[] = {MHA_Q, MHA_K, MHA_V, MHA_OUT, MHA_LSE, MHA_ATTN_MASK, MHA_ATTN_BIAS};
    for (int i = 0; i < 7; i++) assert_int_equal(t[i].id, ids[i]);
    assert_int_equal(t[3].pointer, offsetof(attune_arguments, out));
    attune_arguments arguments;
    assert_ptr_equal(mha_strides_in(&arguments, &t[3]), arguments.out.strides);
    assert_int_equal(t[3].problem_strides, offsetof(attune_problem, out_strides));
    assert_string_equal(t[3].name, "out");
    assert_int_equal(t[5].pointer, offsetof(attune_arguments, attn_mask));
    assert_int_equal(t[5].dtype, ATTUNE_BOOL);
    assert_true(mha_is_broadcast(&p, &t[5], 1) && !mha_is_broadcast(&p, &t[5], 0));
    assert_true(mha_is_broadcast(&p, &t[6], 2) && !mha_is_broadcast(&p, &t[6], 3));
}

static void test_strides(void **state) {
    (void)state;
    static const struct {
        const char *problem;
        mha_tensor_id id;
        int64_t dims[4], strides[4];
    } cases[] = {
        {"num_heads=3,seq_q=dynamic,head_dim=8", MHA_Q, {2, 3, 5, 8}, {120, 40, 8, 1}},
        {"num_heads=3,seq_q=dynamic,head_dim=8", MHA_OUT, {2, 3, 0, 8}, {24, 8, 8, 1}},
        {"num_heads=3,is_ragged=1,head_dim=8", MHA_Q, {1, 3, 5, 8}, {120, 8, 24, 1}},
        {"num_heads=3,is_ragged=1,head_dim=8,is_causal=1,is_general=1", MHA_Q, {1, 3, 5, 8}, {120, 8, 24, 1}},
        {"num_heads=3,is_ragged=1,head_dim=8,page_size=4", MHA_K, {7, 3, 4, 8}, {96, 32, 8, 1}},
        {"num_heads=3,is_ragged=1,head_dim=8,has_lse=1", MHA_LSE, {1, 3, 5}, {15, 5, 1}},
        {"num_heads=3,seq_q=dynamic,head_dim=8,attn_mask_dims=hk", MHA_ATTN_MASK, {2, 3, 5, 6}, {0, 6, 0, 1}},
        {"num_heads=3,embed_dim=24,seq_q=dynamic", MHA_OUT, {2, 5, 24}, {120, 24, 1}},
        {"num_heads=3,embed_dim=24,seq_q=dynamic,no_out_projection=1", MHA_OUT, {2, 3, 5, 8}, {120, 8, 24, 1}},
        {"num_heads=3,embed_dim=24,is_ragged=1,no_out_projection=1", MHA_OUT, {1, 3, 5, 8}, {120, 8, 24, 1}},
        {"num_heads=3,embed_dim=24,seq_q=4,seq_new=4,seq_kv=dynamic", MHA_K, {2, 3, 5, 8}, {120, 40, 8, 1}},
        {"num_heads=3,seq_q=dynamic,head_dim=8,attn_bias_dims=q", MHA_ATTN_BIAS, {2, 3, 5, 6}, {0, 0, 1, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_problem p = problem_canonical(cases[i].problem);
        mha_tensor tensors[MHA_NUM_TENSORS];
        const size_t count = mha_tensors(&p, tensors);
        for (size_t t = 0; t < count; t++) {
            if (tensors[t].id != cases[i].id) continue;
            int64_t strides[4] = {0};
            at_error err = {0};
            assert_int_equal(mha_settle_strides(&p, &tensors[t], cases[i].dims, strides, &err), ATTUNE_OK);
            assert_memory_equal(strides, cases[i].strides, sizeof strides);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params_match_scalars),
        cmocka_unit_test(test_declarations),
        cmocka_unit_test(test_keys_that_follow),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
