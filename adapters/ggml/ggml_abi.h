/* ggml's binary interface as far as it is used here: ggml.h, ggml-backend.h, ggml-backend-impl.h and ggml-impl.h of
 * ggml (MIT licence, the ggml authors), versions 0.9.11 and 0.10 to 0.25. But for ggml_backend these structs have the
 * same layout in all of them; scripts/engines/ggml.sh compares them with the headers of the sources that it tests with.
 *
 * Numbers of operators and types move between versions: they are found by name. */
#ifndef ATTUNE_GGML_ABI_H
#define ATTUNE_GGML_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Tensors and graphs ---- */

enum { GGML_ABI_SOURCES = 10, GGML_ABI_COMPUTE = 16 };

typedef struct ggml_tensor ggml_tensor;
struct ggml_tensor {
    int type;
    void *buffer;
    int64_t ne[4]; /* elements; dim 0 is the innermost */
    size_t nb[4];  /* strides in bytes */
    int op;
    int32_t op_params[16];
    int32_t flags; /* GGML_ABI_COMPUTE: the node is to be computed */
    ggml_tensor *src[GGML_ABI_SOURCES];
    ggml_tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
    char padding[8];
};

typedef struct ggml_graph {
    int size, n_nodes, n_leafs;
    ggml_tensor **nodes, **grads, **grad_accs, **leafs;
    int32_t *use_counts;
    struct {
        size_t size;
        uint32_t *used;
        ggml_tensor **keys;
    } visited;
    int order;
    uint64_t uid; /* from 0.10 on; before that nobody reads it */
} ggml_graph;

/* ---- A plug-in: reg, device, backend ---- */

enum { GGML_ABI_API_VERSION = 2 };
enum { GGML_ABI_SUCCESS = 0, GGML_ABI_FAILED = -1, GGML_ABI_ABORTED = 1 };
enum { GGML_ABI_CPU = 0, GGML_ABI_ACCEL = 3 };
enum { GGML_ABI_LOG_DEBUG = 1, GGML_ABI_LOG_INFO = 2, GGML_ABI_LOG_WARN = 3 };

typedef struct ggml_reg ggml_reg;
typedef struct ggml_device ggml_device;
typedef struct ggml_backend ggml_backend;
typedef struct ggml_buffer_type ggml_buffer_type; /* ggml's own */

typedef bool ggml_abort_callback(void *data);
typedef void ggml_set_n_threads(ggml_backend *backend, int n_threads);
typedef void ggml_set_abort_callback(ggml_backend *backend, ggml_abort_callback *callback, void *data);

/* What llama.cpp prints of a plug-in among the features of the system. A list ends with NULLs. */
typedef struct ggml_feature {
    const char *name, *value;
} ggml_feature;

struct ggml_reg {
    int api_version;
    const char *(*get_name)(ggml_reg *reg);
    size_t (*get_device_count)(ggml_reg *reg);
    ggml_device *(*get_device)(ggml_reg *reg, size_t index);
    void *(*get_proc_address)(ggml_reg *reg, const char *name);
    void *context;
};

typedef struct ggml_device_props {
    const char *name, *description;
    size_t memory_free, memory_total;
    int type;
    const char *device_id;
    bool async, host_buffer, buffer_from_host_ptr, events, mmap_support;
} ggml_device_props;

typedef void ggml_unused(void);

struct ggml_device {
    const char *(*get_name)(ggml_device *device);
    const char *(*get_description)(ggml_device *device);
    void (*get_memory)(ggml_device *device, size_t *free, size_t *total);
    int (*get_type)(ggml_device *device);
    void (*get_props)(ggml_device *device, ggml_device_props *props);
    ggml_backend *(*init_backend)(ggml_device *device, const char *params);
    ggml_buffer_type *(*get_buffer_type)(ggml_device *device);
    ggml_unused *get_host_buffer_type, *buffer_from_host_ptr;
    bool (*supports_op)(ggml_device *device, const ggml_tensor *op);
    bool (*supports_buft)(ggml_device *device, ggml_buffer_type *type);
    ggml_unused *offload_op, *event_new, *event_free, *event_synchronize;
    ggml_reg *reg;
    void *context;
};

struct ggml_backend {
    const uint8_t (*guid)[16];
    const char *(*get_name)(ggml_backend *backend);
    void (*free)(ggml_backend *backend);
    ggml_unused *set_tensor_async, *get_tensor_async, *set_tensor_2d_async, *get_tensor_2d_async, *cpy_tensor_async;
    ggml_unused *synchronize, *graph_plan_create, *graph_plan_free, *graph_plan_update, *graph_plan_compute;
    int (*graph_compute)(ggml_backend *backend, ggml_graph *graph);
    ggml_unused *event_record, *event_wait, *graph_optimize;
    ggml_device *device;
    void *context;
};

/* That of 0.9. */
typedef struct ggml_backend_0_9 {
    const uint8_t (*guid)[16];
    const char *(*get_name)(ggml_backend *backend);
    void (*free)(ggml_backend *backend);
    ggml_unused *set_tensor_async, *get_tensor_async, *cpy_tensor_async;
    ggml_unused *synchronize, *graph_plan_create, *graph_plan_free, *graph_plan_update, *graph_plan_compute;
    int (*graph_compute)(ggml_backend *backend, ggml_graph *graph);
    ggml_unused *event_record, *event_wait, *graph_optimize;
    ggml_device *device;
    void *context;
} ggml_backend_0_9;

#endif
