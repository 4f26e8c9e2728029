/* PyTorch's stable C interface, declared here because PyTorch need not be installed where attune is built. All
 * functions are looked up in the libtorch_cpu.so that the process has loaded (torch_abi_open); PyTorch is not linked.
 *
 * PyTorch declares these functions in torch/csrc/stable/c/shim.h and torch/csrc/inductor/aoti_torch/c/shim.h, and keeps
 * them from version to version. Those of TORCH_REQUIRED exist since 2.10. */
#ifndef ATTUNE_TORCH_ABI_H
#define ATTUNE_TORCH_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opaque; the receiver owns it, so a kernel owns its arguments. */
typedef struct torch_tensor_opaque *torch_tensor;
typedef struct torch_library_opaque *torch_library;
typedef struct torch_string_opaque *torch_string;

/* An argument or a result of a kernel: a tensor, a string, the bits of an int64, a double or a bool. An optional is a
 * pointer to a heap cell with the value, or 0. */
typedef uint64_t torch_value;

/* A kernel pops its arguments from the stack, and pushes its results. */
typedef void torch_kernel_fn(torch_value *stack, uint64_t num_arguments, uint64_t num_results);

/* A status of 0 is success. PyTorch prints the reason of a failure to stderr. */
typedef int32_t torch_status;

typedef void torch_range_fn(int64_t begin, int64_t end, void *context);

/* The version of the interface that this adapter is written for: 2.10. */
#define TORCH_ABI_2_10 ((uint64_t)2 << 56 | (uint64_t)10 << 48)

/* X(result, name, parameters) */
#define TORCH_REQUIRED(X)                                                                                              \
    X(uint64_t, aoti_torch_abi_version, (void))                                                                        \
    X(int32_t, aoti_torch_device_type_cpu, (void))                                                                     \
    X(int32_t, aoti_torch_layout_strided, (void))                                                                      \
    X(int32_t, aoti_torch_dtype_float32, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_float64, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_float16, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_bfloat16, (void))                                                                      \
    X(int32_t, aoti_torch_dtype_bool, (void))                                                                          \
    X(int32_t, aoti_torch_dtype_int8, (void))                                                                          \
    X(int32_t, aoti_torch_dtype_int32, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_int64, (void))                                                                         \
    X(torch_status, aoti_torch_get_dim, (torch_tensor tensor, int64_t *rank))                                          \
    X(torch_status, aoti_torch_get_sizes, (torch_tensor tensor, int64_t **borrowed))                                   \
    X(torch_status, aoti_torch_get_strides, (torch_tensor tensor, int64_t **borrowed))                                 \
    X(torch_status, aoti_torch_get_dtype, (torch_tensor tensor, int32_t *dtype))                                       \
    X(torch_status, aoti_torch_get_device_type, (torch_tensor tensor, int32_t *type))                                  \
    X(torch_status, aoti_torch_get_layout, (torch_tensor tensor, int32_t *layout))                                     \
    X(torch_status, aoti_torch_is_defined, (torch_tensor tensor, bool *defined))                                       \
    X(torch_status, aoti_torch_get_data_ptr, (torch_tensor tensor, void **data))                                       \
    X(torch_status, aoti_torch_new_uninitialized_tensor, (torch_tensor * owned))                                       \
    X(torch_status, aoti_torch_new_tensor_handle, (torch_tensor tensor, torch_tensor * owned))                         \
    X(torch_status, aoti_torch_empty_strided,                                                                          \
      (int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,                 \
       int32_t device_index, torch_tensor *owned))                                                                     \
    X(torch_status, aoti_torch_delete_tensor_object, (torch_tensor tensor))                                            \
    X(torch_status, aoti_torch_library_init_impl,                                                                      \
      (const char *name, const char *key, const char *file, uint32_t line, torch_library *library))                    \
    X(torch_status, aoti_torch_library_init_fragment,                                                                  \
      (const char *name, const char *file, uint32_t line, torch_library *library))                                     \
    X(torch_status, aoti_torch_library_def, (torch_library library, const char *schema))                               \
    X(torch_status, torch_library_impl,                                                                                \
      (torch_library library, const char *name, torch_kernel_fn *kernel, uint64_t abi_version))                        \
    X(torch_status, aoti_torch_delete_library_object, (torch_library library))                                         \
    X(torch_status, torch_call_dispatcher,                                                                             \
      (const char *name, const char *overload, torch_value *stack, uint64_t abi_version))                              \
    X(torch_status, torch_string_c_str, (torch_string text, const char **borrowed))                                    \
    X(torch_status, torch_delete_string, (torch_string text))                                                          \
    X(torch_status, torch_parallel_for,                                                                                \
      (int64_t begin, int64_t end, int64_t grain, torch_range_fn *fn, void *context))                                  \
    X(torch_status, torch_get_num_threads, (uint32_t *threads))                                                        \
    X(void, aoti_torch_check, (bool ok, const char *function, const char *file, uint32_t line, const char *message))   \
    X(void, aoti_torch_warn, (const char *function, const char *file, uint32_t line, const char *message))             \
    X(torch_status, aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu,                                        \
      (torch_tensor query, torch_tensor key, torch_tensor value, double dropout_p, int32_t is_causal,                  \
       torch_tensor *mask, double *scale, torch_tensor *out, torch_tensor *lse))

/* NULL if PyTorch is older than the function. */
#define TORCH_OPTIONAL(X)                                                                                              \
    X(torch_status, torch_delete_stable_ivalue, (torch_value * cell))   /* 2.13 */                                     \
    X(const char *, torch_exception_get_what_without_backtrace, (void)) /* 2.13 */

#define TORCH_POINTER(result, name, parameters) result(*name) parameters;
struct torch_abi {
    TORCH_REQUIRED(TORCH_POINTER)
    TORCH_OPTIONAL(TORCH_POINTER)
    /* The numbers of types, set by torch_abi_open. */
    int32_t f32, f64, f16, bf16, boolean, i8, i32, i64, cpu, strided;
    void (*delete_cell)(void *cell); /* frees the heap cell of an optional */
};
#undef TORCH_POINTER

/* Valid after torch_abi_open has succeeded. */
extern struct torch_abi torch;

/* Finds the functions in the process. Returns NULL, or a sentence if PyTorch is not loaded, or too old. */
const char *torch_abi_open(void);

/* ---- Tensors ---- */

enum { TORCH_MAX_RANK = 4 };

/* A strided tensor in CPU memory. */
typedef struct torch_view {
    void *data;
    int32_t dtype;
    int32_t rank;
    int64_t sizes[TORCH_MAX_RANK], strides[TORCH_MAX_RANK];
} torch_view;

/* False if the tensor is not defined, not strided, not in CPU memory or of a rank above TORCH_MAX_RANK. */
bool torch_view_of(torch_tensor tensor, torch_view *view);

/* The strides of torch.empty_like(tensor): its own if it is dense, otherwise dense ones in its order of dims. Sizes are
 * at least 1. */
void torch_strides_like(const torch_view *view, int64_t *strides);

/* The value of an optional, whose cell is freed; `given`: whether it has a value. */
torch_value torch_take_optional(torch_value optional, bool *given);

static inline torch_tensor torch_tensor_of(torch_value value) { return (torch_tensor)(uintptr_t)value; }
static inline torch_string torch_string_of(torch_value value) { return (torch_string)(uintptr_t)value; }
static inline torch_value torch_value_of(torch_tensor tensor) { return (torch_value)(uintptr_t)tensor; }
static inline double torch_double_of(torch_value value) {
    double number;
    __builtin_memcpy(&number, &value, sizeof number);
    return number;
}
static inline bool torch_bool_of(torch_value value) { return (uint8_t)value != 0; }

#endif
