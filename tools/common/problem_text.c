/* The library parses and prints; here are only the defaults that a user may leave out, such as as many keys as
 * queries. */
#include "common/problem_text.h"

#include "common/tool.h"
#include "ref_block.h"

#include <stdlib.h>
#include <string.h>

/* ---- Text ---- */

bool problem_from_text(const char *text, attune_problem *problem) {
    *problem = (attune_problem)ATTUNE_PROBLEM_INIT;
    if (problem_text_is_described(text))
        tool_error("this command is for attention; of other operators attune run computes and measures a step, attune "
                   "explain shows the kernels, attune compile one of them, and attune cache ls those that are cached");
    else if (attune_problem_parse(problem, text) == ATTUNE_OK && attune_problem_check(problem) == ATTUNE_OK)
        return true;
    else
        problem_refuse();
    return false;
}

bool problem_text_is_described(const char *text) {
    size_t count = 0;
    return attune_description_kernel(text, 0, NULL, 0, &count) || count;
}

void problem_refuse(void) {
    enum { BEFORE = sizeof "op is '" - 1 };
    char message[ATTUNE_MESSAGE_BYTES], op[32] = "";
    snprintf(message, sizeof message, "%s", attune_last_message());
    const char *const last = strncmp(message, "op is '", BEFORE) ? NULL : strstr(message, " or ");
    if (last) snprintf(op, sizeof op, "op=%.*s", (int)strcspn(message + BEFORE, "'"), message + BEFORE);
    if (last && problem_text_is_described(op))
        tool_error("%s must come first, before what else describes the operator", op);
    else if (last)
        tool_error("%.*s, %s, linear, conv, index, blocks or mla", (int)(last - message), message, last + 4);
    else
        tool_error("%s", message);
}

bool problem_text_has(const char *text, const char *pair) {
    const char *wanted = pair;
    for (const char *at = text; at; at++) {
        if (*at && strchr(" \t\r\n", *at)) continue;
        if (!*wanted && (!*at || *at == ',')) return true;
        if (*at && *at == *wanted) {
            wanted++;
            continue;
        }
        at += strcspn(at, ","); /* it is another pair: on to the next one */
        if (!*at) return false;
        wanted = pair;
    }
    return false;
}

char *problem_text(const attune_problem *problem) {
    const size_t length = attune_problem_print(problem, NULL, 0);
    char *const text = malloc(length + 1);
    if (text) attune_problem_print(problem, text, length + 1);
    return text;
}

static bool has_dims(const int64_t dims[4]) { return dims[0] || dims[1] || dims[2] || dims[3]; }

/* A length of a ragged problem bounds the lengths of its sequences. */
static void bound_ragged_size(int64_t *size, int64_t *most) {
    if (*size > 0 && (!*most || *size < *most)) *most = *size;
    *size = ATTUNE_DYNAMIC;
}

static void fill_block(attune_problem *p) {
    if (!p->head_dim && p->num_heads > 0 && p->embed_dim % p->num_heads == 0) p->head_dim = p->embed_dim / p->num_heads;
    if (!p->kv_embed_dim) p->kv_embed_dim = p->embed_dim;
    if (p->kv_embed_dim != p->embed_dim) p->is_cross = 1;
    if (p->kv_projected) p->is_cross = 0;
    if (!p->out_dim && !p->no_out_projection) p->out_dim = p->embed_dim;
    /* Without a cache k_dtype and v_dtype matter only with `reproducible`. */
    if (!p->seq_new && !p->kv_projected && !p->reproducible) p->k_dtype = p->v_dtype = ATTUNE_DTYPE_DEFAULT;
}

static int64_t default_keys(const attune_problem *p) {
    return p->page_size && p->has_kv_lens ? ATTUNE_DYNAMIC : p->seq_q;
}

static void fill_scales(attune_dtype dtype, attune_scales *scales) {
    if (!ref_is_quantised(dtype)) *scales = ATTUNE_SCALES_NONE;
    if (!*scales)
        *scales = dtype == ATTUNE_I8   ? ATTUNE_SCALES_HEAD
                  : dtype == ATTUNE_I4 ? ATTUNE_SCALES_GROUP
                                       : ATTUNE_SCALES_NONE;
}

void problem_fill_defaults(attune_problem *p) {
    const bool is_block = ref_is_block(p), has_keys = is_block || p->op == ATTUNE_ATTENTION || p->op == ATTUNE_WEIGHTS;
    if (is_block) fill_block(p);
    if (!p->num_kv_heads) p->num_kv_heads = p->num_heads;
    if (p->is_ragged) {
        bound_ragged_size(&p->seq_q, &p->max_seq_q);
        bound_ragged_size(&p->seq_kv, &p->max_seq_kv);
        if (p->seq_new) p->seq_new = ATTUNE_DYNAMIC;
    }
    if (!p->seq_kv && has_keys) p->seq_kv = default_keys(p);
    if (p->kv_ids && !p->num_ids) p->num_ids = ATTUNE_DYNAMIC;
    if (!p->head_dim_v) p->head_dim_v = p->head_dim;
    if (!p->dtype) p->dtype = ATTUNE_F32;
    if (!p->w_dtype && is_block) p->w_dtype = p->dtype;
    /* Types of tensors that the problem does not have are ignored. */
    if (!p->k_dtype || !has_keys) p->k_dtype = p->dtype;
    if (!p->v_dtype || !has_keys || p->op == ATTUNE_WEIGHTS) p->v_dtype = p->v_in_k ? p->k_dtype : p->dtype;
    fill_scales(p->k_dtype, &p->k_scales);
    if (p->v_in_k) p->v_scales = p->k_scales;
    fill_scales(p->v_dtype, &p->v_scales);
    if (!p->bias_dtype || !has_keys || !has_dims(p->attn_bias_dims)) p->bias_dtype = p->dtype;
    const bool is_f64 = p->dtype == ATTUNE_F64 || p->k_dtype == ATTUNE_F64 || p->v_dtype == ATTUNE_F64 ||
                        p->bias_dtype == ATTUNE_F64 || p->w_dtype == ATTUNE_F64;
    if (!p->softmax_precision) p->softmax_precision = is_f64 ? ATTUNE_F64 : ATTUNE_F32;
}
