/* Takes the arguments off the dispatcher's stack, and calls PyTorch's kernel by its C++ symbol, past the dispatcher. */
#define _GNU_SOURCE
#include "block_stock.h"

#include <dlfcn.h>

/* PyTorch has no C function for this kernel. A composition of other operators would take 10 us a call, imitate one
 * version of PyTorch only, and report errors differently; a call through Python takes longer. So this calls the C++
 * function that PyTorch has for calls without the dispatcher, at::cpu::_native_multi_head_attention. Its mangled name
 * has the types of all parameters, so a function with another signature is not found.
 *
 * The C++ ABI of both architectures passes references as pointers, and std::optional<int64_t> as a struct with the same
 * members. A Tensor is a pointer. std::tuple<Tensor, Tensor>, whose members are in reverse order, is returned through
 * memory of the caller, as C returns structs of more than 16 bytes. */
typedef struct optional_tensor {
    void *tensor;
    bool given;
} optional_tensor;

typedef struct optional_int {
    int64_t value;
    bool given;
} optional_int;

typedef struct results {
    void *weights, *out, *unused;
} results;

typedef results stock_fn(torch_tensor query, torch_tensor key, torch_tensor value, int64_t embed_dim, int64_t num_heads,
                         torch_tensor qkv_weight, torch_tensor qkv_bias, torch_tensor out_weight, torch_tensor out_bias,
                         const optional_tensor *mask, bool need_weights, bool average_weights, optional_int mask_type);

static stock_fn *stock;

const char *block_stock_open(void) {
    void *const library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return "PyTorch's libtorch_cpu.so is not loaded in this process";
    *(void **)&stock = dlsym(library, "_ZN2at3cpu28_native_multi_head_attentionERKNS_6TensorES3_S3_llS3_S3_S3_S3_"
                                      "RKSt8optionalIS1_EbbS4_IlE");
    dlclose(library);
    return stock ? NULL : "PyTorch has no at::cpu::_native_multi_head_attention that attune knows";
}

void block_take(const torch_value *stack, block_call *c) {
    torch_tensor *const tensors[] = {&c->query, &c->key, &c->value};
    torch_tensor *const weights[] = {&c->qkv_weight, &c->qkv_bias, &c->out_weight, &c->out_bias};
    for (int i = 0; i < 3; i++) *tensors[i] = torch_tensor_of(stack[i]);
    c->embed_dim = (int64_t)stack[3];
    c->num_heads = (int64_t)stack[4];
    for (int i = 0; i < 4; i++) *weights[i] = torch_tensor_of(stack[5 + i]);
    c->mask = torch_tensor_of(torch_take_optional(stack[9], &c->has_mask));
    c->need_weights = torch_bool_of(stack[10]);
    c->average_weights = torch_bool_of(stack[11]);
    c->mask_type = (int64_t)torch_take_optional(stack[12], &c->has_mask_type);
}

void block_drop(block_call *c) {
    const torch_tensor all[] = {c->query, c->key, c->value, c->qkv_weight, c->qkv_bias, c->out_weight, c->out_bias};
    for (int i = 0; i < 7; i++) torch.aoti_torch_delete_tensor_object(all[i]);
    if (c->has_mask) torch.aoti_torch_delete_tensor_object(c->mask);
}

/* A handle is a pointer to a Tensor, so an undefined Tensor can be replaced by a defined one in place. */
static torch_tensor handle_of(void *tensor) {
    torch_tensor handle = NULL;
    if (!torch.aoti_torch_new_uninitialized_tensor(&handle)) *(void **)handle = tensor;
    return handle;
}

void block_stock(const block_call *c, torch_tensor *out, torch_tensor *weights) {
    const optional_tensor mask = {.tensor = c->has_mask ? *(void **)c->mask : NULL, .given = c->has_mask};
    const optional_int mask_type = {.value = c->mask_type, .given = c->has_mask_type};
    const results r = stock(c->query, c->key, c->value, c->embed_dim, c->num_heads, c->qkv_weight, c->qkv_bias,
                            c->out_weight, c->out_bias, &mask, c->need_weights, c->average_weights, mask_type);
    *out = handle_of(r.out);
    *weights = handle_of(r.weights);
}
