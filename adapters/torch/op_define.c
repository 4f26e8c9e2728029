/* Defines attune's operators, attune::… Python adds fake kernels, autograd, autocast and vmap. */
#include "op_call.h"

static const struct {
    const char *schema, *name;
    torch_kernel_fn *kernel;
} ops[] = {
    {"attention(Tensor q, Tensor k, Tensor v, Tensor? attn_mask=None, Tensor? attn_bias=None, Tensor? kv_lens=None, "
     "Tensor? sinks=None, bool is_causal=False, str causal_align=\"bottom_right\", int window_left=-1, "
     "int window_right=-1, float logits_soft_cap=0.0, float? softmax_scale=None) -> (Tensor out, Tensor lse)",
     "attention", op_attention},
    {"attention_append(Tensor q, Tensor k_new, Tensor v_new, Tensor(a!) k_cache, Tensor(b!) v_cache, "
     "Tensor(c!)? k_scale, Tensor(d!)? v_scale, Tensor kv_lens, Tensor? attn_mask=None, Tensor? sinks=None, "
     "bool is_causal=True, int window_left=-1, int window_right=-1, float logits_soft_cap=0.0, "
     "float? softmax_scale=None) -> Tensor",
     "attention_append", op_append},
};

const char *ops_define(void) {
    /* Both are never freed. */
    torch_library definitions, kernels;
    bool failed = torch.aoti_torch_library_init_fragment("attune", __FILE__, __LINE__, &definitions) ||
                  torch.aoti_torch_library_init_impl("attune", "CPU", __FILE__, __LINE__, &kernels);
    for (size_t i = 0; i < sizeof ops / sizeof *ops && !failed; i++)
        failed = torch.aoti_torch_library_def(definitions, ops[i].schema) ||
                 torch.torch_library_impl(kernels, ops[i].name, ops[i].kernel, TORCH_ABI_2_10);
    return failed ? "PyTorch refused attune's operators; its reason is on stderr" : NULL;
}
