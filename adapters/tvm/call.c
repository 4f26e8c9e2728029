/* Takes arguments one by one and checks the type of each; the first failure is kept as the sentence that TVM-FFI
 * raises. */
#include "call.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

bool call_fail(call *c, const char *kind, const char *format, ...) {
    if (c->kind) return false;
    const int length = snprintf(c->message, sizeof c->message, "attune.%s: ", c->name);
    va_list list;
    va_start(list, format);
    vsnprintf(c->message + length, sizeof c->message - (size_t)length, format, list);
    va_end(list);
    c->kind = kind;
    return false;
}

static const char *kind_of(attune_status status) {
    switch (status) {
    case ATTUNE_INVALID_ARGUMENT:
    case ATTUNE_INVALID_PROBLEM: return "ValueError";
    case ATTUNE_OUT_OF_MEMORY: return "MemoryError";
    default: return "RuntimeError";
    }
}

bool call_refuse(call *c, attune_status status, const char *message) {
    return call_fail(c, kind_of(status), "%s", message);
}

bool call_check(call *c, attune_status status) { return !status || call_refuse(c, status, attune_last_message()); }

/* The caller has loaded the library, perhaps not into the global scope. */
static uintptr_t find_function(const char *name) {
    void *const library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
    void *const found = dlsym(library ? library : RTLD_DEFAULT, name);
    if (library) dlclose(library);
    return (uintptr_t)found;
}

/* If the function is missing, TVM-FFI is linked into the caller and hidden, so its version is unknown. */
bool call_check_version(call *c) {
    static atomic_bool is_checked;
    tvm_version have = {.major = 0, .minor = 1};
    if (atomic_load(&is_checked)) return true;
    tvm_get_version *const get_version = (tvm_get_version *)find_function("TVMFFIGetVersion");
    if (get_version) get_version(&have);
    if (have.major != 0 || have.minor != 1)
        return call_fail(c, "RuntimeError", "TVM-FFI is of version %u.%u; it must be 0.1", (unsigned)have.major,
                         (unsigned)have.minor);
    atomic_store(&is_checked, true);
    return true;
}

int call_end(const call *c, tvm_any *result) {
    *result = (tvm_any){.type = TVM_NONE};
    if (!c->kind) return 0;
    tvm_raise *const raise = (tvm_raise *)find_function("TVMFFIErrorSetRaisedFromCStr");
    if (raise) raise(c->kind, c->message);
    return -1;
}

bool call_has(const call *c, int32_t index) { return index < c->count && c->arguments[index].type != TVM_NONE; }

bool call_text(call *c, int32_t index, const char *what, tvm_bytes *text) {
    const tvm_any *const a = index < c->count ? &c->arguments[index] : &(tvm_any){0};
    const char *end = a->type == TVM_RAW_TEXT ? a->value.text : "";
    switch (a->type) {
    case TVM_RAW_TEXT:
        while (*end) end++;
        *text = (tvm_bytes){a->value.text, (size_t)(end - a->value.text)};
        return true;
    case TVM_SMALL_TEXT: *text = (tvm_bytes){a->value.small, a->small_length}; return true;
    case TVM_TEXT: *text = *(const tvm_bytes *)((const tvm_object *)a->value.pointer + 1); return true;
    default: return call_fail(c, "TypeError", "%s must be text", what);
    }
}

bool call_tensor(call *c, int32_t index, const char *what, const attune_dltensor **tensor) {
    const tvm_any *const a = index < c->count ? &c->arguments[index] : &(tvm_any){0};
    *tensor = a->type == TVM_DLTENSOR ? a->value.pointer
              : a->type == TVM_TENSOR ? (const void *)((const tvm_object *)a->value.pointer + 1)
                                      : NULL;
    return *tensor || call_fail(c, "TypeError", "%s must be a tensor", what);
}

bool call_number(call *c, int32_t index, const char *what, double *number) {
    const tvm_any *const a = index < c->count ? &c->arguments[index] : &(tvm_any){0};
    const bool is_integer = a->type == TVM_INT || a->type == TVM_BOOL;
    if (!is_integer && a->type != TVM_FLOAT) return call_fail(c, "TypeError", "%s must be a number", what);
    *number = is_integer ? (double)a->value.integer : a->value.number;
    return true;
}

bool call_integer(call *c, int32_t index, const char *what, int64_t *number) {
    const tvm_any *const a = index < c->count ? &c->arguments[index] : &(tvm_any){0};
    if (a->type != TVM_INT && a->type != TVM_BOOL) return call_fail(c, "TypeError", "%s must be an integer", what);
    *number = a->value.integer;
    return true;
}
