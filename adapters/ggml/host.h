/* The process's ggml: its functions, and the numbers that its version gives operators and types. */
#ifndef ATTUNE_GGML_HOST_H
#define ATTUNE_GGML_HOST_H

#include "ggml_abi.h"

/* Types of K and V, named as in ggml. */
typedef enum ggml_cache {
    GGML_F32,
    GGML_F16,
    GGML_BF16,
    GGML_Q8_0,
    GGML_Q4_0,
    GGML_Q4_1,
    GGML_Q5_0,
    GGML_Q5_1,
    GGML_IQ4_NL,
    GGML_NUM_CACHES
} ggml_cache;

/* Written by host_open, and constant as long as the process has one ggml. */
typedef struct ggml_host {
    const char *(*ggml_version)(void);
    const char *(*ggml_op_name)(int op);
    const char *(*ggml_type_name)(int type);
    void (*ggml_log_internal)(int level, const char *format, ...); /* NULL: nothing is logged */
    bool (*ggml_backend_buft_is_host)(ggml_buffer_type *type);
    ggml_buffer_type *(*ggml_backend_cpu_buffer_type)(void);
    ggml_buffer_type *(*ggml_backend_buffer_get_type)(void *buffer);
    void *(*ggml_backend_buffer_get_base)(void *buffer);
    size_t (*ggml_backend_buffer_get_size)(void *buffer);
    ggml_backend *(*ggml_backend_init_by_type)(int type, const char *params);
    void (*ggml_backend_free)(ggml_backend *backend);
    int (*ggml_backend_graph_compute)(ggml_backend *backend, ggml_graph *graph);
    ggml_device *(*ggml_backend_get_device)(ggml_backend *backend);
    ggml_reg *(*ggml_backend_dev_backend_reg)(ggml_device *device);
    void *(*ggml_backend_reg_get_proc_address)(ggml_reg *reg, const char *name);
    bool is_0_9;                  /* a backend is a ggml_backend_0_9 */
    int flash_attn_ext, soft_max; /* numbers of operators */
    int views[5];                 /* operators that compute nothing */
    int caches[GGML_NUM_CACHES];  /* numbers of types */
} ggml_host;
extern ggml_host host;

/* Finds functions and numbers of the ggml that called: of the library or program that `caller` lies in, and of those
 * that it depends on. false: it is no ggml that attune knows, and the log has the reason. Backends may compute
 * meanwhile. */
bool host_open(const void *caller);

/* Writes a line to ggml's log. */
void host_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
