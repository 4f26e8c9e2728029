/* A ggml that has no more than what the plug-in asks for: its functions, a CPU backend that computes FLASH_ATTN_EXT in
 * f64, and nodes that tests describe. Numbers of operators and types are not those of ggml. */
#ifndef ATTUNE_TEST_GGML_HOST_H
#define ATTUNE_TEST_GGML_HOST_H

#include "ggml/ggml_abi.h"

enum { OP_NONE, OP_PERMUTE, OP_OTHER, OP_VIEW, OP_RESHAPE, OP_TRANSPOSE, OP_SOFT_MAX, OP_FLASH_ATTN_EXT };
enum { F16, IQ4_NL, Q4_1, F32, BF16, Q5_1, Q4_0, Q5_0, OTHER_TYPE, Q8_0 };

/* What the host is, and what the plug-in did to it. */
typedef struct fake_ggml {
    const char *version;
    int live_backends, cpu_nodes, cpu_threads;
    ggml_abort_callback *cpu_abort;
    char log[65536];
} fake_ggml;
extern fake_ggml fake;

/* What a tensor's `buffer` may be; NULL: the plug-in is told nothing about its memory. */
typedef struct fake_buffer {
    void *base;
    size_t size;
    bool is_foreign; /* its type is not that of the CPU's memory */
} fake_buffer;

/* As first seen by a plug-in. */
void fake_reset(void);

/* One node and its tensors, by what differs from case to case. */
typedef struct fake_case {
    int64_t streams, heads, kv_heads, rows, keys, dim, dim_v; /* 0: 1; dim_v: dim */
    int k_type, v_type;
    float soft_cap, max_bias;
    bool has_sinks, v_in_k, is_mask_of_heads, has_no_mask, is_one_mask; /* one mask for all streams */
    int64_t mask_rows;                                                  /* 0: rows; more are filled with NaN */
    bool (*sees)(const struct fake_case *c, int64_t stream, int64_t row, int64_t key);   /* NULL: everything */
    uint16_t (*bias)(const struct fake_case *c, int64_t head, int64_t row, int64_t key); /* f16; NULL: 0 */
    int64_t at;                                                                          /* for `sees` and `bias` */
} fake_case;

/* Numbers from a fixed seed, NaN in each key that no row of its stream sees. The result holds NaN. free_node frees. */
ggml_tensor *make_node(const fake_case *c);
void free_node(ggml_tensor *node);

/* Attention in f64, as ggml's documentation has it, into `out` of the result's shape. */
void reference(const ggml_tensor *node, float *out);

/* The largest difference between the result and `expected`, relative to numbers above 1; infinite after a NaN. */
double worst_difference(const ggml_tensor *node, const float *expected);

uint16_t f16_of(double number);
double number_of_f16(uint16_t bits);

#endif
