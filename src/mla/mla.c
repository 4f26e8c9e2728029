/* MLA blocks: packs weights, and creates the kernels and attentions of a block. */
#include "mla/mla.h"

#include "attention/attention.h"
#include "base/fpenv.h"
#include "layer/weight_source.h"
#include "problem/problem_fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const at_struct weights_struct = {"attune_mla_weights", "start from ATTUNE_MLA_WEIGHTS_INIT",
                                         sizeof(attune_mla_weights), NULL, sizeof(attune_mla_weights)};

const at_described_op mla_described = {
    AT_DESCRIBED_OP(mla, MLA, &mla_table, offsetof(attune_mla_step, kv_ids)),
    .options = {.struct_size = sizeof(attune_operator_options), .name = "mla", .build = mla_build, .version = 1},
    .run = mla_run};

/* ---- Weights ---- */

/* A matrix, and the offset of its first output in the model's weights. */
typedef struct source {
    const char *name;
    const void *weight, *bias;
    bool out_first;      /* rows are outputs */
    int64_t head, first; /* rows of the model's matrix from one head to the next; the first one */
} source;

static source source_of(const attune_mla_desc *d, const attune_mla_weights *w, mla_matrix which) {
    const int64_t head = d->qk_nope_head_dim + d->v_head_dim;
    switch (which) {
    case MLA_Q_LOW: return (source){"q_a_proj", w->q_a_proj, w->q_a_bias, true, 0, 0};
    case MLA_Q:
        return d->q_lora_rank ? (source){"q_b_proj", w->q_b_proj, NULL, true, 0, 0}
                              : (source){"q_proj", w->q_proj, NULL, true, 0, 0};
    case MLA_KV_LOW: return (source){"kv_a_proj", w->kv_a_proj, w->kv_a_bias, true, 0, 0};
    case MLA_UK: return (source){"kv_b_proj", w->kv_b_proj, NULL, false, head, 0};
    case MLA_UK_BACK: return (source){"kv_b_proj", w->kv_b_proj, NULL, true, head, 0};
    case MLA_UV: return (source){"kv_b_proj", w->kv_b_proj, NULL, true, head, d->qk_nope_head_dim};
    default: return (source){"o_proj", w->o_proj, w->o_bias, true, 0, 0};
    }
}

static bool has_matrix(const attune_mla_desc *d, mla_matrix which) {
    if (which == MLA_Q_LOW) return d->q_lora_rank > 0;
    if (which == MLA_UK) return d->form != ATTUNE_MLA_UNABSORBED;
    return which != MLA_UK_BACK || d->form != ATTUNE_MLA_ABSORBED;
}

static attune_status check_weights(const attune_mla_desc *d, const attune_mla_weights *w, at_error *err) {
    for (mla_matrix m = 0; m < MLA_NUM_MATRICES; m++) {
        const source s = source_of(d, w, m);
        if (has_matrix(d, m) && !s.weight)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s of the weights is NULL", s.name);
    }
    if (!w->kv_a_layernorm || (d->q_lora_rank && !w->q_a_layernorm))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s of the weights is NULL",
                       w->kv_a_layernorm ? "q_a_layernorm" : "kv_a_layernorm");
    const bool has_low = w->q_a_proj || w->q_b_proj || w->q_a_layernorm || w->q_a_bias;
    if (d->q_lora_rank ? w->q_proj != NULL : has_low)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "q_lora_rank is %lld, but there are weights of %s",
                       (long long)d->q_lora_rank, d->q_lora_rank ? "q_proj" : "q_a_proj, q_a_layernorm or q_b_proj");
    return ATTUNE_OK;
}

static void pack_matrix(attune_mla *mla, const attune_mla_weights *weights, mla_matrix which) {
    const attune_mla_desc *d = &mla->desc;
    const size_t size = mha_weight_bytes(d->dtype);
    const source from = source_of(d, weights, which);
    mha_packed_section s;
    int64_t end = 0;
    mla_section_of(d, which, &s, &end);
    const size_t stride = (size_t)(from.out_first ? s.depth : s.columns) * size;
    for (int64_t head = 0; head < (mla_is_of_heads(which) ? d->num_heads : 1); head++) {
        const size_t first = (size_t)(head * from.head + from.first);
        const mha_packed_source one = {
            .weight = (const unsigned char *)from.weight + first * stride, .bias = from.bias, .stride = stride};
        mha_pack_matrix(&s, &one, from.out_first, size, mla->matrix[which] + (size_t)head * mla->head_bytes[which]);
    }
}

static float widened(attune_dtype dtype, const void *numbers, int64_t i) {
    if (dtype == ATTUNE_F32) return ((const float *)numbers)[i];
    if (dtype == ATTUNE_F16) return (float)((const _Float16 *)numbers)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)numbers)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void pack_norm(const attune_mla_desc *d, const void *from, int64_t columns, float *to) {
    for (int64_t i = 0; i < columns; i++) to[i] = widened(d->dtype, from, i);
}

/* All sections are whole cache lines. */
static attune_status pack(attune_mla *mla, const attune_mla_weights *weights, at_error *err) {
    enum { LINE = 64 };
    const attune_mla_desc *d = &mla->desc;
    size_t offset[MLA_NUM_MATRICES] = {0}, bytes = 0;
    for (mla_matrix m = 0; m < MLA_NUM_MATRICES; m++) {
        mha_packed_section s;
        int64_t end = 0;
        if (!has_matrix(d, m)) continue;
        mla_section_of(d, m, &s, &end);
        mla->head_bytes[m] = (size_t)end * mha_weight_bytes(d->dtype);
        offset[m] = bytes;
        bytes += mla->head_bytes[m] * (size_t)(mla_is_of_heads(m) ? d->num_heads : 1);
    }
    const size_t norms = bytes;
    bytes += (size_t)(d->q_lora_rank + d->kv_lora_rank) * sizeof(float);
    mla->packed = at_alloc_aligned(&mla->described.context->allocator, bytes, LINE);
    if (!mla->packed) return at_fail_memory(err, bytes);
    mla->kv_norm = (float *)(void *)((char *)mla->packed + norms);
    mla->q_norm = mla->kv_norm + d->kv_lora_rank;
    pack_norm(d, weights->kv_a_layernorm, d->kv_lora_rank, mla->kv_norm);
    pack_norm(d, weights->q_a_layernorm, d->q_lora_rank, mla->q_norm);
    for (mla_matrix m = 0; m < MLA_NUM_MATRICES; m++) {
        if (!has_matrix(d, m)) continue;
        mla->matrix[m] = (unsigned char *)mla->packed + offset[m];
        pack_matrix(mla, weights, m);
    }
    return ATTUNE_OK;
}

/* ---- Attention ---- */

static attune_status make_attention(attune_mla *mla, attune_attention **made, at_error *err) {
    const attune_mla_desc *d = &mla->desc;
    const bool is_listed = made == &mla->listed;
    attune_attention_desc a = ATTUNE_ATTENTION_DESC_INIT;
    a.dtype = d->dtype;
    a.is_causal = !is_listed;
    a.softmax_scale = d->softmax_scale;
    a.reproducible = d->reproducible;
    if (made != &mla->unabsorbed) {
        a.num_heads = d->num_heads, a.num_kv_heads = 1;
        a.head_dim = mla_width(d), a.head_dim_v = d->kv_lora_rank;
        a.kv = d->page_size ? ATTUNE_KV_PAGED : ATTUNE_KV_CACHE;
        a.layout = d->page_size ? ATTUNE_THD : ATTUNE_BSHD;
        a.page_size = d->page_size;
        a.extra = is_listed ? "v_in_k=1,kv_ids=query,has_kv_id_lens=1" : "v_in_k=1";
    } else {
        a.num_heads = mla_heads_at_once(d);
        a.head_dim = d->qk_nope_head_dim + d->qk_rope_head_dim, a.head_dim_v = d->v_head_dim;
    }
    const attune_status status = attune_attention_create(mla->described.context, &a, made);
    return status ? at_fail(err, status, "%s", attune_last_message()) : ATTUNE_OK;
}

/* ---- Life ---- */

static attune_status fill(attune_mla *mla, const attune_mla_weights *weights, at_error *err) {
    const attune_mla_desc *d = &mla->desc;
    if (pack(mla, weights, err)) return err->status;
    if (d->form != ATTUNE_MLA_UNABSORBED && make_attention(mla, &mla->absorbed, err)) return err->status;
    if (d->has_ids && make_attention(mla, &mla->listed, err)) return err->status;
    return d->form == ATTUNE_MLA_ABSORBED ? ATTUNE_OK : make_attention(mla, &mla->unabsorbed, err);
}

attune_status attune_mla_create(attune_context *context, const attune_mla_desc *desc, const attune_mla_weights *weights,
                                attune_mla **mla) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_mla_weights w;
    if (mla) *mla = NULL;
    if (!desc || !weights || !mla) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_mla_create was given no %s",
                !desc      ? "description"
                : !weights ? "weights"
                           : "pointer to the block");
        return at_report(&err);
    }
    attune_mla *const made = calloc(1, sizeof *made);
    if (!made) {
        at_fail_memory(&err, sizeof *made);
        return at_report(&err);
    }
    if (at_copy_in(&mla_table.desc, desc, &made->desc, &err) || at_copy_in(&weights_struct, weights, &w, &err) ||
        mla_table.settle(&made->desc, &err) || check_weights(&made->desc, &w, &err) ||
        at_described_open(&made->described, &mla_described, context, &err)) {
        free(made);
    } else if (fill(made, &w, &err)) {
        attune_mla_destroy(made);
    } else {
        *mla = made;
    }
    return at_report(&err);
}

void attune_mla_destroy(attune_mla *mla) {
    if (!mla) return;
    attune_attention_destroy(mla->absorbed);
    attune_attention_destroy(mla->unabsorbed);
    attune_attention_destroy(mla->listed);
    at_free(&mla->described.context->allocator, mla->packed);
    at_described_destroy(&mla->described);
}

/* Those for one token, and for many. */
static attune_status prepare_kernels(attune_mla *mla, at_error *err) {
    attune_kernel *kernel;
    for (uint32_t which = 0; which < MLA_NUM_KERNELS && !err->status; which++) {
        const int size = which % MLA_NUM_SIZES;
        if (mla_table.has_kernel(&mla->desc, which) && (size == 0 || size == MLA_NUM_SIZES - 1))
            at_described_kernel(&mla->described, which, &kernel, err);
    }
    return err->status;
}

attune_status attune_mla_prepare(attune_mla *mla) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!mla) at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_mla_prepare was given NULL");
    if (err.status || prepare_kernels(mla, &err)) return at_report(&err);
    attune_attention *const attentions[] = {mla->absorbed, mla->unabsorbed, mla->listed};
    for (int i = 0; i < 3; i++) {
        const attune_status status = attentions[i] ? attune_attention_prepare(attentions[i]) : ATTUNE_OK;
        if (status) return status;
    }
    return ATTUNE_OK;
}

attune_status attune_mla_desc_init(attune_mla_desc *desc, size_t struct_size) {
    return at_described_init(&mla_table.desc, desc, struct_size);
}

attune_status attune_mla_step_init(attune_mla_step *step, size_t struct_size) {
    return at_described_init(&mla_described.step, step, struct_size);
}

attune_status attune_mla_run(attune_mla *mla, const attune_mla_step *step) {
    return at_described_run(&mla_described, (at_described *)mla, step, false);
}

attune_status attune_mla_run_interpreted(attune_mla *mla, const attune_mla_step *step) {
    return at_described_run(&mla_described, (at_described *)mla, step, true);
}
