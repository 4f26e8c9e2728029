/* The part of TVM's foreign function interface that is used here: values and the heads of objects, from tvm/ffi/c_api.h
 * of apache-tvm-ffi 0.1. tests/python/test_tvm.py compares them with the header of the installed package. */
#ifndef ATTUNE_TVM_FFI_H
#define ATTUNE_TVM_FFI_H

#include <stddef.h>
#include <stdint.h>

enum {
    TVM_NONE = 0,
    TVM_INT = 1,
    TVM_BOOL = 2,
    TVM_FLOAT = 3,
    TVM_DLTENSOR = 7, /* DLTensor * */
    TVM_RAW_TEXT = 8, /* const char * */
    TVM_SMALL_TEXT = 11,
    TVM_TEXT = 65,  /* an object: a head, then tvm_bytes */
    TVM_TENSOR = 70 /* an object: a head, then a DLTensor */
};

/* A value, or a pointer to an object. */
typedef struct tvm_any {
    int32_t type;
    uint32_t small_length; /* of a small text; otherwise 0 */
    union {
        int64_t integer;
        double number;
        void *pointer;
        const char *text;
        char small[8];
    } value;
} tvm_any;

/* The head of an object. */
typedef struct tvm_object {
    uint64_t references;
    int32_t type;
    uint32_t padding;
    void (*deleter)(void *self, int flags);
} tvm_object;

typedef struct tvm_bytes {
    const char *data;
    size_t size;
} tvm_bytes;

typedef struct tvm_version {
    uint32_t major, minor, patch;
} tvm_version;

/* TVMFFIGetVersion, which is the same in all versions. */
typedef void tvm_get_version(tvm_version *version);

/* A function "name" is the symbol __tvm_ffi_name. Returns 0, or -1 after an error was raised. */
typedef int tvm_function(void *self, const tvm_any *arguments, int32_t count, tvm_any *result);

/* TVMFFIErrorSetRaisedFromCStr: raises an error of a kind such as "ValueError". */
typedef void tvm_raise(const char *kind, const char *message);

#endif
