/* The public functions on the weights of a block, and blocks that keep theirs. */
#include "engine/context.h"

#include "base/fpenv.h"
#include "layer/packed_weights.h"
#include "layer/weight_source.h"

#include <string.h>

struct attune_mha {
    attune_context *context;
    attune_kernel *kernel;
    const void *packed;
    size_t packed_bytes;
    void *owned; /* `packed`, or NULL where it is the caller's */
};

enum { PACKED_ALIGN = 64 };

const char *attune_weight_name(attune_weight_id id) { return mha_weight_name(id); }

/* ---- Packing ---- */

/* The canonical form of a problem that has weights. */
static attune_status canonical_block(const attune_problem *problem, attune_problem *canonical, at_error *err) {
    const attune_status status = mha_canonicalize(problem, canonical, err);
    if (status || mha_is_block(canonical)) return status;
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "embed_dim is %lld: only a block has weights, and a block has an embed_dim",
                   (long long)canonical->embed_dim);
}

static size_t packed_size(const attune_problem *canonical) {
    mha_packed_layout layout;
    mha_packed_layout_of(canonical, &layout);
    return (size_t)layout.elements * mha_weight_bytes(canonical->w_dtype);
}

attune_status attune_mha_weights_init_sized(attune_mha_weights *weights, size_t struct_size,
                                            const attune_problem *problem, attune_weight_layout layout) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    attune_mha_weights whole;
    at_struct kind = mha_weights_struct;
    kind.defaults = &whole;
    if (!problem || !weights) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_mha_weights_init was given NULL");
    } else if (layout != ATTUNE_OUT_IN && layout != ATTUNE_IN_OUT) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "layout is %d, which is no attune_weight_layout", (int)layout);
    } else if (canonical_block(problem, &canonical, &err) == ATTUNE_OK) {
        mha_weights_init(&canonical, layout, &whole);
        at_struct_init(&kind, weights, struct_size, &err);
    }
    return at_report(&err);
}

attune_status attune_packed_weights_size(const attune_problem *problem, size_t *bytes) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    if (!problem || !bytes)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_packed_weights_size was given NULL");
    else if (canonical_block(problem, &canonical, &err) == ATTUNE_OK)
        *bytes = packed_size(&canonical);
    return at_report(&err);
}

attune_status attune_pack_weights(const attune_problem *problem, const attune_mha_weights *weights, void *packed,
                                  size_t bytes) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    if (!problem || !weights || !packed)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_pack_weights was given NULL");
    else if (canonical_block(problem, &canonical, &err) == ATTUNE_OK)
        mha_pack_weights(&canonical, weights, packed, bytes, &err);
    return at_report(&err);
}

attune_status attune_packed_weights_check(const attune_problem *problem, const void *packed, size_t bytes) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    if (!problem || !packed)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_packed_weights_check was given NULL");
    else if (canonical_block(problem, &canonical, &err) == ATTUNE_OK)
        mha_packed_check(&canonical, packed, bytes, &err);
    return at_report(&err);
}

/* ---- Blocks ---- */

/* A block without its weights, which the caller adds. */
static attune_status create(attune_context *context, const attune_problem *problem, const char *schedule,
                            attune_mha **mha, at_error *err) {
    attune_mha *made = at_alloc(&context->allocator, sizeof *made);
    if (!made) return at_fail_memory(err, sizeof *made);
    const attune_status status = attune_compile(context, problem, schedule, &made->kernel);
    if (status) {
        at_free(&context->allocator, made);
        return at_fail(err, status, "%s", attune_last_message());
    }
    made->context = context;
    *mha = made;
    return ATTUNE_OK;
}

attune_status attune_mha_create(attune_context *context, const attune_problem *problem, const char *schedule,
                                const attune_mha_weights *weights, attune_mha **mha) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    if (mha) *mha = NULL;
    if (!context || !problem || !weights || !mha) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_mha_create was given NULL");
        return at_report(&err);
    }
    if (canonical_block(problem, &canonical, &err)) return at_report(&err);
    const size_t bytes = packed_size(&canonical);
    void *packed = at_alloc_aligned(&context->allocator, bytes, PACKED_ALIGN);
    if (!packed) at_fail_memory(&err, bytes);
    /* Weights first: they are wrong more often, and checking them is cheaper. */
    if (!err.status && !mha_pack_weights(&canonical, weights, packed, bytes, &err) &&
        !create(context, problem, schedule, mha, &err)) {
        (*mha)->packed = (*mha)->owned = packed;
        (*mha)->packed_bytes = bytes;
        return ATTUNE_OK;
    }
    at_free(&context->allocator, packed);
    return at_report(&err);
}

/* Without a length a blob's header is believed. */
static attune_status check_blob(const attune_problem *canonical, const void *packed, size_t bytes, at_error *err) {
    if (bytes) return mha_packed_check(canonical, packed, bytes, err);
    return mha_packed_check_header(canonical, packed, err);
}

attune_status attune_mha_create_packed(attune_context *context, const attune_problem *problem, const char *schedule,
                                       const void *packed, size_t bytes, attune_mha **mha) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    if (mha) *mha = NULL;
    if (!context || !problem || !packed || !mha) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_mha_create_packed was given NULL");
        return at_report(&err);
    }
    if (!canonical_block(problem, &canonical, &err) && !check_blob(&canonical, packed, bytes, &err) &&
        !create(context, problem, schedule, mha, &err)) {
        (*mha)->packed = packed;
        (*mha)->packed_bytes = mha_packed_bytes(packed); /* of the whole blob, if this block needs only a part */
    }
    return at_report(&err);
}

attune_status attune_mha_run(const attune_mha *mha, const attune_arguments *arguments,
                             const attune_run_options *options) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!mha || !arguments) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_mha_run was given NULL");
        return at_report(&err);
    }
    attune_arguments with_weights;
    const at_struct kind = at_arguments_struct(&mha->kernel->signature);
    if (at_copy_in(&kind, arguments, &with_weights, &err)) return at_report(&err);
    with_weights.packed_weights = mha->packed;
    return attune_run_with(mha->context, mha->kernel, &with_weights, options);
}

const attune_kernel *attune_mha_kernel(const attune_mha *mha) { return mha ? mha->kernel : NULL; }

const void *attune_mha_packed_weights(const attune_mha *mha, size_t *bytes) {
    if (bytes) *bytes = mha ? mha->packed_bytes : 0;
    return mha ? mha->packed : NULL;
}

void attune_mha_destroy(attune_mha *mha) {
    if (!mha) return;
    attune_context *const context = mha->context;
    attune_kernel_release(mha->kernel);
    at_free(&context->allocator, mha->owned);
    at_free(&context->allocator, mha);
}
