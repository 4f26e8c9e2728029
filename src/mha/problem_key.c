/* What a kernel is specialised for, as bytes. */
#include "mha/gemm.h"

#include <string.h>

typedef struct key_writer {
    uint8_t *bytes;
    size_t length;
} key_writer;

static void put(key_writer *w, int64_t value) {
    for (int i = 0; i < 8; i++) w->bytes[w->length++] = (uint8_t)((uint64_t)value >> (8 * i));
}

/* A number of the arithmetic that the kernel does: one of f32 is rounded first. */
static void put_number(key_writer *w, const attune_problem *p, double value) {
    const double rounded = p->softmax_precision == ATTUNE_F64 ? value : (double)(float)value;
    int64_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    put(w, bits);
}

/* What a mask is the same for. Of batch and heads too: where its strides are left open they follow from that at run
 * time. */
static void put_mask(key_writer *w, const attune_problem *p, const int64_t dims[4]) {
    put(w, !dims[3] ? 0 : 16 + (dims[0] == 1) + 2 * (dims[1] == 1) + 4 * (dims[2] == 1) + 8 * (dims[3] == 1));
    put(w, p->short_masks && dims[3] != 1 ? dims[3] : 0);
}

static void put_tensors(key_writer *w, const attune_problem *p) {
    mha_tensor tensors[MHA_NUM_TENSORS];
    const size_t count = mha_tensors(p, tensors);
    for (size_t i = 0; i < count; i++)
        if (tensors[i].has_strides) put(w, tensors[i].inner_stride);
}

/* Changing the order or the meaning of these fields changes KEY_FORMAT. */
size_t mha_key(const attune_problem *p, uint8_t key[MHA_KEY_BYTES]) {
    enum { KEY_FORMAT = 6 };
    const bool is_block = p->op == ATTUNE_MHA;
    const int64_t fields[] = {
        KEY_FORMAT,
        p->op,
        p->dtype,
        p->k_dtype,
        p->v_dtype,
        p->bias_dtype,
        p->softmax_precision,
        p->num_heads / p->num_kv_heads,
        p->seq_q,
        p->seq_kv,
        p->max_seq_q,
        p->max_seq_kv,
        p->head_dim,
        p->head_dim_v,
        p->is_causal,
        p->causal_align,
        p->causal_offset,
        p->window_left,
        p->window_right,
        p->global_tokens,
        p->has_lse,
        p->has_alibi_slopes,
        p->has_sinks,
        p->has_kv_lens,
        p->has_causal_offsets,
        p->is_ragged,
        p->page_size,
        p->seq_new,
        p->v_in_k,
        p->short_masks,
        p->rotary_dim,
        p->rotary_interleaved,
        p->has_position_ids,
        p->weights_mode,
        p->weights_average,
        p->has_row_ids,
        p->reproducible,
        p->num_rows,
        p->num_parts,
        is_block ? p->num_heads : 0,
        mha_few_rows(p),
        p->embed_dim,
        p->kv_embed_dim,
        p->v_embed_dim,
        p->out_dim,
        p->is_cross,
        p->kv_projected,
        p->no_out_projection,
        p->low_rank,
        p->low_rank_heads,
        p->low_rank_shared,
        p->w_dtype,
        p->k_scales,
        p->v_scales,
    };
    enum { COUNT = sizeof fields / sizeof *fields };
    /* Beside the fields: two numbers, two words for each mask, and the inner strides of twelve tensors at most. */
    _Static_assert((COUNT + 2 + 4 + 12) * 8 <= MHA_KEY_BYTES, "a key holds all of them");
    key_writer w = {key, 0};
    for (int i = 0; i < COUNT; i++) put(&w, fields[i]);
    put_number(&w, p, p->softmax_scale);
    put_number(&w, p, p->logits_soft_cap);
    put_mask(&w, p, p->attn_mask_dims);
    put_mask(&w, p, p->attn_bias_dims);
    put_tensors(&w, p);
    return w.length;
}
