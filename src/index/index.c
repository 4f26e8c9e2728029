/* Descriptions of an index. */
#include "index/index.h"

#include "attention/attention.h"
#include "base/fpenv.h"
#include "base/struct.h"
#include "problem/problem_fields.h"

#include <stdlib.h>
#include <string.h>

static const at_struct desc_struct = {"attune_index_desc", "start from ATTUNE_INDEX_DESC_INIT",
                                      sizeof(attune_index_desc), NULL, sizeof(attune_index_desc)};

attune_status attune_index_desc_init(attune_index_desc *desc, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&desc_struct, desc, struct_size, &err);
    return at_report(&err);
}

static attune_status check_dtype(const char *name, attune_dtype dtype, bool may_be_bytes, at_error *err) {
    if (dtype == ATTUNE_F32 || dtype == ATTUNE_BF16 || dtype == ATTUNE_F16) return ATTUNE_OK;
    if (may_be_bytes && (dtype == ATTUNE_I8 || dtype == ATTUNE_F8)) return ATTUNE_OK;
    const char *const word = (unsigned)dtype < ATTUNE_DTYPE_COUNT ? mha_dtype_name(dtype) : "no attune_dtype";
    return at_fail(err, ATTUNE_UNSUPPORTED, "%s is %s; it must be f32, bf16%s", name, word,
                   may_be_bytes ? ", f16, i8 or f8" : " or f16");
}

static attune_status settle(const attune_index_desc *given, attune_index_desc *d, at_error *err) {
    enum { MOST_HEADS = 256, MOST_DIM = 512, MOST_IDS = 65536, MOST_PAGE = 65536 };
    *d = *given;
    if (d->dtype == ATTUNE_DTYPE_DEFAULT) d->dtype = ATTUNE_F32;
    if (d->w_dtype == ATTUNE_DTYPE_DEFAULT) d->w_dtype = ATTUNE_F32;
    if (at_check_size("num_heads", d->num_heads, 1, MOST_HEADS, err) ||
        at_check_size("head_dim", d->head_dim, 1, MOST_DIM, err) ||
        at_check_size("num_ids", d->num_ids, 1, MOST_IDS, err) || check_dtype("dtype", d->dtype, true, err) ||
        check_dtype("w_dtype", d->w_dtype, false, err) || at_check_size("is_causal", d->is_causal, 0, 1, err) ||
        at_check_size("page_size", d->page_size, 0, MOST_PAGE, err))
        return err->status;
    return at_check_size("has_scores", d->has_scores, 0, 1, err);
}

attune_status attune_index_create(attune_context *context, const attune_index_desc *desc, attune_index **index) {
    AT_DEFAULT_FPENV;
    static const attune_operator_options options = {.struct_size = sizeof options,
                                                    .name = "index",
                                                    .build = idx_build,
                                                    .choices = idx_choices,
                                                    .num_choices = IDX_NUM_CHOICES,
                                                    .version = 1};
    at_error err = {0};
    attune_index_desc given, d;
    attune_operator *op;
    if (index) *index = NULL;
    if (!desc || !index) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_index_create was given no %s",
                desc ? "pointer to the index" : "description");
        return at_report(&err);
    }
    if (at_copy_in(&desc_struct, desc, &given, &err) || settle(&given, &d, &err)) return at_report(&err);
    if (!context) {
        const attune_status status = an_shared_context(&context);
        if (status) return status;
    }
    if (at_operator_of(context, &options, &op, &err)) return at_report(&err);
    attune_index *const made = calloc(1, sizeof *made);
    if (!made) {
        at_fail_memory(&err, sizeof *made);
        return at_report(&err);
    }
    *made = (attune_index){.context = context, .op = op, .desc = d};
    idx_print(&d, made->problem);
    *index = made;
    return ATTUNE_OK;
}

void attune_index_destroy(attune_index *index) {
    if (!index) return;
    attune_kernel_release(atomic_load(&index->kernel));
    free(index);
}

attune_status attune_index_prepare(attune_index *index) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_kernel *kernel;
    if (!index)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_index_prepare was given NULL");
    else
        at_operator_kernel(index->op, index->problem, &index->kernel, &kernel, &err);
    return at_report(&err);
}
