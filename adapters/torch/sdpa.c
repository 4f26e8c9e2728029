/* aten::_scaled_dot_product_flash_attention_for_cpu by attune. */
#include "adapter.h"

static torch_library library;

typedef struct call {
    torch_tensor query, key, value, mask;
    double dropout_p, scale;
    bool is_causal, has_mask, has_scale;
} call;

static call take(const torch_value *stack) {
    call c = {.query = torch_tensor_of(stack[0]),
              .key = torch_tensor_of(stack[1]),
              .value = torch_tensor_of(stack[2]),
              .dropout_p = torch_double_of(stack[3]),
              .is_causal = torch_bool_of(stack[4])};
    c.mask = torch_tensor_of(torch_take_optional(stack[5], &c.has_mask));
    c.scale = torch_double_of(torch_take_optional(stack[6], &c.has_scale));
    return c;
}

static void drop(call *c) {
    torch.aoti_torch_delete_tensor_object(c->query);
    torch.aoti_torch_delete_tensor_object(c->key);
    torch.aoti_torch_delete_tensor_object(c->value);
    if (c->has_mask) torch.aoti_torch_delete_tensor_object(c->mask);
}

static torch_status stock(call *c, torch_tensor *out, torch_tensor *lse) {
    return torch.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(c->query, c->key, c->value, c->dropout_p,
                                                                            c->is_causal, c->has_mask ? &c->mask : NULL,
                                                                            c->has_scale ? &c->scale : NULL, out, lse);
}

static void kernel(torch_value *stack, uint64_t num_arguments, uint64_t num_results) {
    (void)num_arguments, (void)num_results;
    call c = take(stack);
    torch_tensor out = NULL, lse = NULL;
    ADAPTER_COUNT("sdpa.stock.unsupported");
    const torch_status status = stock(&c, &out, &lse);
    drop(&c);
    torch.aoti_torch_check(!status, __func__, __FILE__, __LINE__,
                           "scaled_dot_product_attention failed; PyTorch's reason is on stderr");
    stack[0] = torch_value_of(out);
    stack[1] = torch_value_of(lse);
}

const char *sdpa_enable(void) {
    return adapter_override("_scaled_dot_product_flash_attention_for_cpu", kernel, &library);
}

void sdpa_disable(void) {
    torch.aoti_torch_delete_library_object(library);
    library = NULL;
}
