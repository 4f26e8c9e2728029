/* The custom call "attune_attention". */
#include "attune_jax.h"
#include "common/context.h"
#include "common/plans.h"
#include "runner.h"
#include "tensors.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

const common_engine_info common_engine = {.has_threads = true, .max_plans = 4096};

static common_plans plans;
static atomic_uint_fast64_t num_calls, num_runs;

void attune_jax_get_counts(attune_jax_counts *counts) {
    *counts = (attune_jax_counts){.calls = atomic_load(&num_calls),
                                  .runs = atomic_load(&num_runs),
                                  .compiles = adapter_counted(&common_compiles),
                                  .disk_hits = adapter_counted(&common_disk_hits)};
}

static xla_error *failure(const xla_call_frame *frame, int code, const char *message) {
    char text[ATTUNE_MESSAGE_BYTES + 32];
    snprintf(text, sizeof text, "attune: %s", message);
    xla_error_create args = {.struct_size = XLA_SIZE_TO(xla_error_create, code), .message = text, .code = code};
    return frame->api->error_create(&args);
}

static int code_of(attune_status status) {
    switch (status) {
    case ATTUNE_INVALID_ARGUMENT:
    case ATTUNE_INVALID_PROBLEM: return XLA_INVALID_ARGUMENT;
    case ATTUNE_UNSUPPORTED: return XLA_UNIMPLEMENTED;
    case ATTUNE_OUT_OF_MEMORY: return XLA_RESOURCE_EXHAUSTED;
    case ATTUNE_CODEGEN_MISSING:
    case ATTUNE_NOT_CACHED: return XLA_FAILED_PRECONDITION;
    case ATTUNE_CANCELLED: return XLA_CANCELLED;
    default: return XLA_INTERNAL;
    }
}

static const xla_text *attribute(const xla_attributes *attributes, const char *name) {
    for (int64_t i = 0; i < attributes->count; i++) {
        const xla_text *const found = attributes->names[i];
        if (found->length == strlen(name) && !memcmp(found->data, name, found->length))
            return attributes->types[i] == XLA_STRING ? attributes->values[i] : NULL;
    }
    return NULL;
}

/* The next index of the outer dims; false after the last one. */
static bool advance(const tensors *t, int64_t *index) {
    for (int d = t->num_outer - 1; d >= 0; d--) {
        if (++index[d] < t->outer[d]) return true;
        index[d] = 0;
    }
    return false;
}

static attune_status run(const xla_call_frame *frame, const common_plan *p, tensors *t, const char **message) {
    const attune_runner runner = xla_runner(frame);
    attune_arguments arguments = p->arguments;
    int64_t index[TENSORS_MAX_OUTER] = {0};
    tensors_fold(t);
    do {
        tensors_bind(t, index, &arguments);
        const attune_status status = common_plan_run(p, &arguments, &runner, 0, message);
        if (status) return status;
        atomic_fetch_add_explicit(&num_runs, 1, memory_order_relaxed);
    } while (advance(t, index));
    return ATTUNE_OK;
}

static xla_error *execute(const xla_call_frame *frame) {
    const xla_text *const text = attribute(&frame->attributes, "problem");
    if (!text) return failure(frame, XLA_INVALID_ARGUMENT, "the call has no text named problem");
    attune_status status;
    const char *message;
    common_plan *const p = common_plan_of_text(&plans, text->data, text->length, &status, &message);
    if (!p) return failure(frame, code_of(status), message);
    tensors t;
    xla_error *error = NULL;
    if (!tensors_take(&t, &p->problem, frame))
        error = failure(frame, XLA_INVALID_ARGUMENT, t.message);
    else if ((status = run(frame, p, &t, &message)))
        error = failure(frame, code_of(status), message);
    else
        atomic_fetch_add_explicit(&num_calls, 1, memory_order_relaxed);
    common_plan_release(p);
    return error;
}

xla_error *attune_jax_attention(xla_call_frame *frame) {
    for (xla_extension *e = frame->extensions; e; e = e->next) {
        if (e->type != XLA_EXTENSION_METADATA) continue;
        xla_metadata *const metadata = ((xla_metadata_extension *)e)->metadata;
        metadata->version.major = XLA_FFI_MAJOR;
        metadata->version.minor = XLA_FFI_MINOR;
        metadata->traits = 0;
        return NULL;
    }
    /* Version 0.1 reports a size up to stream_get only, although it has all functions that are declared here. */
    if (frame->api->version.major != XLA_FFI_MAJOR || frame->struct_size < XLA_SIZE_TO(xla_call_frame, attributes) ||
        frame->api->struct_size < XLA_SIZE_TO(xla_api, stream_get))
        return failure(frame, XLA_UNIMPLEMENTED, "this XLA calls foreign functions in another way than version 0.1");
    return frame->stage == XLA_EXECUTE ? execute(frame) : NULL;
}
