#include "support/calls.h"

const sample samples[NUM_SAMPLES] = {
    [PLAIN] = {.problem = "batch=2,num_heads=4,num_kv_heads=2,seq_q=13,seq_kv=21,head_dim=12,is_causal=1,has_lse=1"},
    [DYNAMIC] = {.problem = "num_heads=2,seq_q=dynamic,seq_kv=dynamic,max_seq_q=40,max_seq_kv=50,head_dim=8,has_lse=1",
                 .sizes = "seq_q=19,seq_kv=37"},
    [MASKED] = {.problem = "batch=2,num_heads=3,seq_q=5,seq_kv=19,head_dim=7,attn_mask_dims=qk,attn_bias_dims=bhk"},
    [SHORT_MASK] = {.problem = "num_heads=2,seq_q=4,seq_kv=30,head_dim=8,short_masks=1,attn_mask_dims=1:1:4:dynamic",
                    .sizes = "mask_seq_kv=17"},
    [LONG_MASK] = {.problem = "num_heads=2,seq_q=4,seq_kv=dynamic,head_dim=8,short_masks=1,attn_mask_dims=1:1:4:17",
                   .sizes = "seq_kv=9"},
    [PADDED] = {.problem = "batch=3,num_heads=2,seq_q=4,seq_kv=21,head_dim=6,has_kv_lens=1,is_causal=1,"
                           "causal_align=bottom_right",
                .kv = {21, 0, 9}},
    [PLACED] = {.problem = "batch=2,num_heads=3,seq_q=7,head_dim=5,has_alibi_slopes=1,has_sinks=1,"
                           "has_causal_offsets=1,window_left=3,window_right=1,logits_soft_cap=3"},
    [RAGGED] =
        {.problem =
             "batch=3,is_ragged=1,num_heads=2,head_dim=8,has_lse=1,is_causal=1,causal_align=bottom_right,max_seq_q=8",
         .sizes = "total_q=12,total_kv=24",
         .q = {5, 0, 6},
         .kv = {9, 3, 11}},
    [PAGED] = {.problem =
                   "batch=2,seq_q=1,seq_kv=dynamic,num_heads=4,num_kv_heads=2,head_dim=8,page_size=4,has_kv_lens=1",
               .sizes = "num_pages=9,max_pages=4",
               .kv = {13, 6}},
    [APPENDED] = {.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=16,seq_new=3,head_dim=8,has_kv_lens=1,"
                             "is_causal=1,causal_align=bottom_right",
                  .kv = {16, 5}},
    [SERVED] = {.problem = "batch=3,is_ragged=1,num_heads=2,head_dim=8,page_size=4,seq_new=dynamic,"
                           "has_kv_lens=1,is_causal=1,causal_align=bottom_right",
                .sizes = "total_q=12,num_pages=8,max_pages=3",
                .q = {5, 1, 6},
                .kv = {9, 3, 11}},
    [RAGGED_MASK] = {.problem = "batch=2,is_ragged=1,num_heads=2,head_dim=8,attn_mask_dims=bqk",
                     .sizes = "total_q=9,total_kv=16,seq_q=6,seq_kv=12",
                     .q = {6, 3},
                     .kv = {5, 11}},
    [ROTATED] = {.problem = "num_heads=2,seq_q=6,head_dim=8,rotary_dim=6", .sizes = "rotary_positions=6"},
    [ROTARY] = {.problem = "op=rotary,batch=2,num_heads=2,seq_q=6,head_dim=8,rotary_dim=8,has_position_ids=1",
                .sizes = "rotary_positions=5,rotary_batch_stride=20"},
    [ROTATED_PADDED] =
        {.problem = "batch=2,num_heads=2,seq_q=5,seq_kv=9,head_dim=8,rotary_dim=8,rotary_interleaved=1,has_kv_lens=1,"
                    "causal_align=top_left",
         .sizes = "rotary_positions=6",
         .kv = {6, 3}},
    [ROTATED_CACHE] =
        {.problem =
             "batch=3,is_ragged=1,num_heads=4,num_kv_heads=2,head_dim=8,page_size=4,seq_new=dynamic,has_kv_lens=1,"
             "rotary_dim=8,is_causal=1,causal_align=bottom_right",
         .sizes = "total_q=12,num_pages=8,max_pages=3,rotary_positions=11",
         .q = {5, 1, 6},
         .kv = {9, 3, 11}},
    [ROTATED_IDS] = {.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=12,seq_new=3,head_dim=8,rotary_dim=4,"
                                "has_kv_lens=1,has_position_ids=1,is_causal=1,causal_align=bottom_right",
                     .sizes = "rotary_positions=4",
                     .kv = {12, 3}},
    [WITH_WEIGHTS] = {.problem = "batch=2,num_heads=4,num_kv_heads=2,seq_q=5,seq_kv=9,head_dim=8,"
                                 "weights_mode=softmax,weights_average=1,has_kv_lens=1,attn_bias_dims=k",
                      .kv = {9, 0}},
    [PAGED_MASK] = {.problem = "batch=2,seq_q=2,seq_kv=dynamic,num_heads=2,head_dim=8,page_size=4,"
                               "has_kv_lens=1,attn_mask_dims=bqk,weights_mode=masked",
                    .sizes = "num_pages=9,max_pages=4,seq_kv=13",
                    .kv = {13, 6}},
    [GLOBAL] = {.problem = "num_heads=2,seq_q=33,head_dim=8,window_left=4,window_right=2,"
                           "global_tokens=3"},
    [MIXED] = {.problem = "num_heads=2,seq_q=9,seq_kv=13,head_dim=10,k_dtype=f16,v_dtype=f16,"
                          "attn_bias_dims=qk,bias_dtype=f16"},
    [WEIGHTS] = {.problem = "op=weights,batch=2,num_heads=2,seq_q=9,seq_kv=11,head_dim=8,has_lse=1,"
                            "weights_mode=softmax,has_row_ids=1,num_rows=4"},
    [MERGE] = {.problem = "op=merge,num_heads=2,seq_q=3,head_dim=8,num_parts=3,has_lse=1"},
    [HALF] = {.problem = "num_heads=2,seq_q=9,head_dim=10,dtype=f16,has_lse=1"},
    [BRAIN] = {.problem =
                   "num_heads=2,seq_q=9,seq_kv=13,head_dim=10,dtype=bf16,attn_bias_dims=qk,is_causal=1,has_lse=1"},
    [WIDE] = {.problem = "num_heads=2,seq_q=9,head_dim=10,dtype=f64,has_lse=1"},
    [LATENT] = {.problem = "num_heads=4,num_kv_heads=1,seq_q=3,seq_kv=11,head_dim=20,head_dim_v=16,"
                           "v_in_k=1"},
    [BLOCK] = {.problem = "batch=2,embed_dim=21,num_heads=6,num_kv_heads=2,head_dim=5,head_dim_v=3,out_dim=19,"
                          "seq_q=dynamic,is_causal=1,has_lse=1",
               .sizes = "seq_q=11"},
    [BLOCK_CROSS] = {.problem = "batch=2,embed_dim=12,kv_embed_dim=17,v_embed_dim=9,num_heads=2,seq_q=3,seq_kv=7,"
                                "dtype=f16,has_kv_lens=1",
                     .kv = {7, 4}},
    [BLOCK_RAGGED] = {.problem = "batch=3,embed_dim=16,num_heads=2,is_ragged=1,is_causal=1,rotary_dim=6",
                      .sizes = "total_q=14,rotary_positions=6",
                      .q = {5, 0, 6}},
    [BLOCK_CACHED] = {.problem =
                          "batch=2,embed_dim=16,num_heads=4,num_kv_heads=2,seq_q=2,seq_kv=16,seq_new=2,"
                          "has_kv_lens=1,rotary_dim=4,rotary_interleaved=1,is_causal=1,causal_align=bottom_right",
                      .sizes = "rotary_positions=16",
                      .kv = {16, 5}},
    [BLOCK_SERVED] = {.problem =
                          "batch=3,embed_dim=16,num_heads=2,is_ragged=1,page_size=4,seq_new=dynamic,has_kv_lens=1,"
                          "rotary_dim=8,is_causal=1,causal_align=bottom_right",
                      .sizes = "total_q=12,num_pages=8,max_pages=3,rotary_positions=11",
                      .q = {5, 1, 6},
                      .kv = {9, 3, 11}},
    [BLOCK_LOW_RANK] = {.problem = "batch=2,embed_dim=18,num_heads=3,seq_q=13,low_rank=5,low_rank_heads=1"},
    [BLOCK_HEADS] = {.problem = "batch=2,embed_dim=18,num_heads=3,seq_q=5,seq_kv=9,kv_projected=1,"
                                "no_out_projection=1,weights_mode=softmax,w_dtype=bf16"},
    [CODES] = {.problem = "batch=2,num_heads=4,num_kv_heads=2,seq_q=5,seq_kv=19,head_dim=12,k_dtype=i8,v_dtype=f8,"
                          "k_scales=token,v_scales=head,is_causal=1"},
    [PANELS] = {.problem = "batch=2,num_heads=4,num_kv_heads=2,seq_q=3,seq_kv=21,head_dim=8,kv_layout=panels"},
    [PANELS_SERVED] = {.problem = "batch=3,is_ragged=1,num_heads=2,head_dim=8,page_size=16,seq_new=dynamic,dtype=bf16,"
                                  "kv_layout=panels,has_kv_lens=1",
                       .sizes = "total_q=6,num_pages=8,max_pages=2",
                       .q = {3, 1, 2},
                       .kv = {19, 4, 17}},
    [CODES_SERVED] = {.problem = "batch=3,is_ragged=1,num_heads=2,head_dim=8,page_size=4,seq_new=dynamic,kv_dtype=i8,"
                                 "kv_scales=token,has_kv_lens=1,is_causal=1,causal_align=bottom_right",
                      .sizes = "total_q=12,num_pages=8,max_pages=3",
                      .q = {5, 1, 6},
                      .kv = {9, 3, 11}},
    [CODES_WEIGHTS] = {.problem = "op=weights,num_heads=2,seq_q=9,seq_kv=11,head_dim=8,k_dtype=f8,k_scales=token"},
    [BLOCK_CODES] = {.problem = "batch=2,embed_dim=16,num_heads=4,num_kv_heads=2,seq_q=2,seq_kv=16,seq_new=2,"
                                "kv_dtype=f8,k_scales=token,has_kv_lens=1,rotary_dim=4,is_causal=1,"
                                "causal_align=bottom_right",
                     .sizes = "rotary_positions=16",
                     .kv = {16, 5}},
};
