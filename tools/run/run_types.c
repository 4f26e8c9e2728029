/* Maps the types of .npy files to those of attune, and says which field to set where they differ. */
#include "run/run_types.h"

#include "common/tensors.h"

#include <stdlib.h>
#include <string.h>

npy_type files_type(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F16: return NPY_F2;
    case ATTUNE_BF16: return NPY_V2;
    case ATTUNE_F64: return NPY_F8;
    case ATTUNE_BOOL: return NPY_B1;
    case ATTUNE_I32: return NPY_I4;
    case ATTUNE_I8: return NPY_I1;
    case ATTUNE_F8: return NPY_U1; /* NumPy does not know it: bytes */
    default: return NPY_F4;
    }
}

attune_dtype run_types_dtype(npy_type type) {
    for (int dtype = ATTUNE_F32; dtype < ATTUNE_DTYPE_COUNT; dtype++)
        if (files_type((attune_dtype)dtype) == type) return (attune_dtype)dtype;
    return ATTUNE_DTYPE_DEFAULT;
}

/* ---- Messages ---- */

/* A type as NumPy's users call it. */
static const char *numpy_name(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F16: return "float16";
    case ATTUNE_BF16: return "bf16 (two raw bytes: '|V2')";
    case ATTUNE_F64: return "float64";
    case ATTUNE_BOOL: return "bool";
    case ATTUNE_I32: return "int32";
    case ATTUNE_I8: return "int8";
    case ATTUNE_F8: return "uint8 (the bytes of E4M3)";
    default: return "float32";
    }
}

/* Whether a field of the problem could have the type of the file. */
static bool may_be(const char *field, attune_dtype found) {
    const bool is_cache = strcmp(field, "k_dtype") == 0 || strcmp(field, "v_dtype") == 0;
    return (found >= ATTUNE_F32 && found <= ATTUNE_F64) || (is_cache && (found == ATTUNE_I8 || found == ATTUNE_F8));
}

static void refuse_field(const run_file *file, const char *field, attune_dtype dtype) {
    const npy_type type = file->array.header.type;
    const attune_dtype found = run_types_dtype(type);
    const bool is_default = dtype == ATTUNE_F32 && strcmp(field, "dtype") == 0;
    const char *const note = is_default ? " (the default)" : "", *const name = tool_dtype_name(dtype);
    if (dtype == ATTUNE_BF16 && type == NPY_U2)
        tool_error("%s is '%s', but the problem has %s=bf16, which NumPy writes as '|V2': save a.view('V2')",
                   file->path, npy_type_name(type), field);
    else if (may_be(field, found))
        tool_error("%s is %s, but the problem has %s=%s%s: set %s=%s, or save it as %s", file->path,
                   tool_dtype_name(found), field, name, note, field, tool_dtype_name(found), numpy_name(dtype));
    else
        tool_error("%s is '%s', but the problem has %s=%s%s: save it as %s", file->path, npy_type_name(type), field,
                   name, note, numpy_name(dtype));
}

bool run_types_refuse(const run_file *file, const char *field, attune_dtype dtype) {
    const npy_type type = file->array.header.type;
    if (strcmp(file->name, "attn_mask") == 0)
        tool_error("%s is '%s', but attn_mask is boolean: save it as bool; numbers that are added to the scores are "
                   "attn_bias_dims=...",
                   file->path, npy_type_name(type));
    else if (strcmp(file->name, "attn_bias") == 0 && type == NPY_B1)
        tool_error("%s is boolean, but attn_bias has numbers that are added to the scores; a boolean mask is "
                   "attn_mask_dims=...",
                   file->path);
    else if (field)
        refuse_field(file, field, dtype);
    else
        tool_error("%s is '%s', but %s is %s: save it as %s", file->path, npy_type_name(type), file->name,
                   tool_dtype_name(dtype), numpy_name(dtype));
    return false;
}

/* ---- Numbers ---- */

void *run_types_convert(const run_file *file, attune_dtype dtype) {
    const npy_header *const h = &file->array.header;
    const size_t bytes = ref_dtype_bytes(dtype);
    void *const data = malloc(h->count * bytes + 1);
    if (!data) {
        tool_error("out of memory for a copy of %s", file->path);
        return NULL;
    }
    const bool is_bytes = dtype == ATTUNE_BOOL && (h->type == NPY_U1 || h->type == NPY_I1);
    if (h->type == files_type(dtype) || is_bytes) {
        memcpy(data, file->array.data, h->count * bytes);
        return data;
    }
    if (dtype == ATTUNE_I32 && h->type == NPY_I8) {
        const int64_t *const from = file->array.data;
        for (size_t i = 0; i < h->count; i++) {
            if (from[i] >= INT32_MIN && from[i] <= INT32_MAX) {
                ((int32_t *)data)[i] = (int32_t)from[i];
                continue;
            }
            tool_error("%s: element %zu is %lld, which is beyond 32 bits", file->path, i, (long long)from[i]);
            free(data);
            return NULL;
        }
        return data;
    }
    run_types_refuse(file, strcmp(file->name, "attn_bias") == 0 ? "bias_dtype" : NULL, dtype);
    free(data);
    return NULL;
}
