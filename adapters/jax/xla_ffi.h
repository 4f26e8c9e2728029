/* The part of XLA's foreign function interface, version 0.1, that is used here: xla/ffi/api/c_api.h in XLA's sources.
 * The layouts are those of 0.1 to 0.3; tests/python/with_jax/test_jax_abi.py compares them with the header of the
 * installed jaxlib. Structs begin with their size, and grow at their end. */
#ifndef ATTUNE_XLA_FFI_H
#define ATTUNE_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_FFI_MAJOR = 0, XLA_FFI_MINOR = 1 };

#define XLA_SIZE_TO(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

typedef struct xla_error xla_error;
typedef struct xla_context xla_context;
typedef struct xla_api xla_api;

enum { XLA_EXTENSION_METADATA = 1 };

typedef struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
    size_t struct_size;
    xla_extension *extensions;
    int major, minor;
} xla_version;

/* What a handler reports when it is registered. Later versions have more members at the end. */
typedef struct xla_metadata {
    size_t struct_size;
    xla_version version;
    uint32_t traits;
} xla_metadata;

typedef struct xla_metadata_extension {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

/* ---- The call ---- */

enum { XLA_PRED = 1, XLA_S32 = 4, XLA_F16 = 10, XLA_F32 = 11, XLA_F64 = 12, XLA_BF16 = 16 };
enum { XLA_BUFFER = 1, XLA_STRING = 4, XLA_EXECUTE = 3 };

typedef struct xla_buffer {
    size_t struct_size;
    xla_extension *extensions;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xla_buffer;

typedef struct xla_text {
    const char *data;
    size_t length;
} xla_text;

/* Operands, or results. */
typedef struct xla_values {
    size_t struct_size;
    xla_extension *extensions;
    int64_t count;
    int *types;
    void **values;
} xla_values;

typedef struct xla_attributes {
    size_t struct_size;
    xla_extension *extensions;
    int64_t count;
    int *types;
    xla_text **names;
    void **values;
} xla_attributes;

typedef struct xla_call_frame {
    size_t struct_size;
    xla_extension *extensions;
    const xla_api *api;
    xla_context *context;
    int stage;
    xla_values operands, results;
    xla_attributes attributes;
} xla_call_frame;

/* ---- What a handler may call ---- */

/* Codes of errors. */
enum {
    XLA_CANCELLED = 1,
    XLA_INVALID_ARGUMENT = 3,
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_FAILED_PRECONDITION = 9,
    XLA_UNIMPLEMENTED = 12,
    XLA_INTERNAL = 13
};

typedef struct xla_error_create {
    size_t struct_size;
    xla_extension *extensions;
    const char *message;
    int code;
} xla_error_create;

typedef struct xla_error_destroy {
    size_t struct_size;
    xla_extension *extensions;
    xla_error *error;
} xla_error_destroy;

/* Runs task(data) once, on a thread of XLA's pool, at some later time. */
typedef struct xla_schedule {
    size_t struct_size;
    xla_extension *extensions;
    xla_context *context;
    void (*task)(void *data);
    void *data;
} xla_schedule;

typedef struct xla_num_threads {
    size_t struct_size;
    xla_extension *extensions;
    xla_context *context;
    int64_t *num_threads;
} xla_num_threads;

struct xla_api {
    size_t struct_size;
    xla_extension *extensions;
    xla_version version;
    const void *internal;
    xla_error *(*error_create)(xla_error_create *);
    void *error_get_message;
    void (*error_destroy)(xla_error_destroy *);
    void *handler_register, *stream_get, *type_register, *context_get, *state_set, *state_get;
    void *memory_allocate, *memory_free;
    xla_error *(*schedule)(xla_schedule *);
    xla_error *(*num_threads)(xla_num_threads *);
};

#endif
