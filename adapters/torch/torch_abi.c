/* Functions are found by name when the adapter is loaded; what is missing is named, and the adapter stays off. */
#define _GNU_SOURCE
#include "torch_abi.h"

#include <dlfcn.h>
#include <stdio.h>

struct torch_abi torch;

static char message[256];

/* PyTorch's libraries are not in the global scope of the process, so they are opened by name. */
static void *loaded(const char *name) { return dlopen(name, RTLD_NOW | RTLD_NOLOAD); }

static const char *find_functions(void *library) {
#define FIND(result, name, parameters)                                                                                 \
    *(void **)&torch.name = dlsym(library, #name);                                                                     \
    if (!torch.name) missing = missing ? missing : #name;
#define FIND_OPTIONAL(result, name, parameters) *(void **)&torch.name = dlsym(library, #name);
    const char *missing = NULL;
    TORCH_REQUIRED(FIND)
    TORCH_OPTIONAL(FIND_OPTIONAL)
#undef FIND
#undef FIND_OPTIONAL
    return missing;
}

static void delete_by_torch(void *cell) { torch.torch_delete_stable_ivalue(cell); }

/* Before 2.13, cells are allocated by C++'s new, and PyTorch has no function for them. */
static bool find_delete(void *library) {
    if (torch.torch_delete_stable_ivalue) {
        torch.delete_cell = delete_by_torch;
        return true;
    }
    void *const cxx = loaded("libstdc++.so.6");
    *(void **)&torch.delete_cell = dlsym(cxx ? cxx : library, "_ZdlPv");
    return torch.delete_cell != NULL;
}

static void ask_types(void) {
    torch.f32 = torch.aoti_torch_dtype_float32();
    torch.f64 = torch.aoti_torch_dtype_float64();
    torch.f16 = torch.aoti_torch_dtype_float16();
    torch.bf16 = torch.aoti_torch_dtype_bfloat16();
    torch.boolean = torch.aoti_torch_dtype_bool();
    torch.i8 = torch.aoti_torch_dtype_int8();
    torch.i32 = torch.aoti_torch_dtype_int32();
    torch.i64 = torch.aoti_torch_dtype_int64();
    torch.cpu = torch.aoti_torch_device_type_cpu();
    torch.strided = torch.aoti_torch_layout_strided();
}

const char *torch_abi_open(void) {
    void *const library = loaded("libtorch_cpu.so");
    if (!library) return "PyTorch's libtorch_cpu.so is not loaded in this process: import torch first";
    uint64_t (*version)(void);
    *(void **)&version = dlsym(library, "aoti_torch_abi_version");
    const uint64_t have = version ? version() : 0;
    const char *missing = find_functions(library);
    if (have >= TORCH_ABI_2_10 && !missing && !find_delete(library)) missing = "operator delete";
    if (have < TORCH_ABI_2_10)
        snprintf(message, sizeof message, "attune needs PyTorch 2.10 or newer; this one is %u.%u",
                 (unsigned)(have >> 56), (unsigned)(have >> 48 & 0xff));
    else if (missing)
        snprintf(message, sizeof message, "PyTorch %u.%u lacks %s, which attune needs", (unsigned)(have >> 56),
                 (unsigned)(have >> 48 & 0xff), missing);
    else
        ask_types();
    return have < TORCH_ABI_2_10 || missing ? message : NULL;
}

bool torch_view_of(torch_tensor tensor, torch_view *view) {
    bool defined = false;
    int32_t device = -1, layout = -1;
    int64_t rank = -1, *sizes, *strides;
    if (torch.aoti_torch_is_defined(tensor, &defined) || !defined ||
        torch.aoti_torch_get_device_type(tensor, &device) || device != torch.cpu ||
        torch.aoti_torch_get_layout(tensor, &layout) || layout != torch.strided ||
        torch.aoti_torch_get_dim(tensor, &rank) || rank > TORCH_MAX_RANK ||
        torch.aoti_torch_get_sizes(tensor, &sizes) || torch.aoti_torch_get_strides(tensor, &strides) ||
        torch.aoti_torch_get_dtype(tensor, &view->dtype) || torch.aoti_torch_get_data_ptr(tensor, &view->data))
        return false;
    view->rank = (int32_t)rank;
    for (int64_t i = 0; i < rank; i++) {
        view->sizes[i] = sizes[i];
        view->strides[i] = strides[i];
    }
    return true;
}

torch_value torch_take_optional(torch_value optional, bool *given) {
    torch_value *const cell = (torch_value *)(uintptr_t)optional;
    *given = cell != NULL;
    if (!cell) return 0;
    const torch_value value = *cell;
    torch.delete_cell(cell);
    return value;
}
