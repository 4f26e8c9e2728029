#include "common/tensors.h"

#include "common/pages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Text ---- */

bool problem_from_text(const char *text, attune_problem *problem) {
    *problem = (attune_problem)ATTUNE_PROBLEM_INIT;
    if (attune_problem_parse(problem, text) == ATTUNE_OK && attune_problem_check(problem) == ATTUNE_OK) return true;
    tool_library_error(NULL);
    return false;
}

attune_status schedule_from_text(const attune_context *context, const attune_problem *problem, const char *text,
                                 attune_schedule *schedule) {
    *schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    attune_status status = attune_schedule_choose(context, problem, schedule);
    if (!status && text) status = attune_schedule_parse(schedule, text);
    if (!status && text) status = attune_schedule_check(context, problem, schedule);
    return status;
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

char *schedule_text(const attune_schedule *schedule) {
    const size_t length = attune_schedule_print(schedule, NULL, 0);
    char *const text = malloc(length + 1);
    if (text) attune_schedule_print(schedule, text, length + 1);
    return text;
}

static bool has_dims(const int64_t dims[4]) { return dims[0] || dims[1] || dims[2] || dims[3]; }

/* A length of a ragged problem bounds the lengths of its entries. */
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

/* ---- Storage ---- */

void tensor_shape(const attune_tensor *info, int64_t dims[4], int64_t strides[4]) {
    for (int d = 0; d < 4; d++) {
        dims[d] = d < info->rank ? info->dims[d] : 1;
        strides[d] = d < info->rank ? info->strides[d] : 0;
    }
}

static size_t storage_elements(const attune_tensor *info) {
    /* The call was checked: the last element's index cannot overflow. */
    size_t last = 0;
    for (int d = 0; d < info->rank; d++) {
        if (!info->dims[d]) return 0;
        last += (size_t)((info->dims[d] - 1) * info->strides[d]);
    }
    return last + 1;
}

static void set_pointer(attune_arguments *arguments, const tensor *t) {
    memcpy((char *)arguments + t->info.pointer_offset, &t->data, sizeof t->data);
}

static bool allocate(tensors *t, tensor *one) {
    one->count = storage_elements(&one->info);
    const size_t element = ref_dtype_bytes(one->info.dtype);
    const bool fits = one->count <= PTRDIFF_MAX / element;
    /* Exactly as many bytes as needed, so that a sanitizer sees accesses beyond. An empty tensor has a pointer, too. */
    const size_t bytes = one->count ? one->count * element : 1;
    one->is_owned = true;
    one->data = fits ? pages_alloc(bytes) : NULL;
    if (!one->data) {
        tool_error("out of memory: a tensor needs %zu elements", one->count);
        return false;
    }
    if (!t->is_unread || one->info.dtype == ATTUNE_I32) memset(one->data, 0, bytes);
    set_pointer(&t->arguments, one);
    return true;
}

static void set_if_open(int64_t *size, int64_t value) {
    if (*size == ATTUNE_NOT_SET) *size = value;
}

/* Where keys are those of x, so is their number. The library refuses another one. */
static void settle_self(const attune_problem *p, attune_arguments *a) {
    if (!ref_is_block(p) || p->is_cross || p->kv_projected) return;
    if (p->seq_new) {
        set_if_open(&a->seq_new, a->seq_q);
    } else {
        set_if_open(&a->seq_kv, a->seq_q);
        set_if_open(&a->total_kv, a->total_q);
    }
}

static bool open_weights(tensors *t) {
    t->weights = (attune_mha_weights){.struct_size = sizeof t->weights};
    if (!ref_is_block(&t->problem)) return true;
    if (attune_mha_weights_init(&t->weights, &t->problem, ATTUNE_OUT_IN) == ATTUNE_OK) return true;
    tool_library_error(NULL);
    return false;
}

bool tensors_allocate_weight(tensors *t, attune_weight_id id) {
    attune_weight *const w = &t->weights.tensor[id];
    size_t count = 1;
    for (int d = 0; d < w->rank; d++) count *= (size_t)w->dims[d];
    t->owns_weights = true;
    w->data = calloc(count, ref_dtype_bytes(w->dtype));
    if (!w->data) tool_error("out of memory for %s", attune_weight_name(id));
    return w->data != NULL;
}

bool tensors_pack(tensors *t) {
    tensor *const packed = tensors_find(t, "packed_weights");
    const size_t bytes = packed ? packed->count * ref_dtype_bytes(packed->info.dtype) : 0;
    if (!packed || attune_pack_weights(&t->problem, &t->weights, packed->data, bytes) == ATTUNE_OK) return true;
    tool_library_error(NULL);
    return false;
}

/* The library's message. If it is about an open size, other problems of a list may have that: this one is named. */
static void refuse_call(const attune_problem *problem) {
    char message[ATTUNE_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", attune_last_message());
    const bool is_open = strstr(message, " is not set; ") != NULL;
    char *const text = is_open ? problem_text(problem) : NULL;
    if (is_open)
        tool_error("%s: --sizes: %s", text ? text : "", message);
    else
        tool_error("%s", message);
    free(text);
}

/* The names of the user's tensors lie in a problem: in that of `t`, which stays. */
static void own_names(tensors *t) {
    for (size_t i = 0; i < t->count; i++)
        for (int n = 0; n < ATTUNE_MAX_USER_TENSORS; n++)
            if (!strcmp(t->list[i].info.name, t->problem.tensors[n].name))
                t->list[i].info.name = t->problem.tensors[n].name;
}

static bool create(tensors *t, const attune_problem *problem, const call_sizes *sizes, bool is_unread) {
    *t = (tensors){.problem = *problem, .arguments = {.struct_size = sizeof t->arguments}, .is_unread = is_unread};
    attune_tensor infos[REF_MAX_TENSORS];
    problem_fill_defaults(&t->problem);
    if (attune_arguments_init(&t->arguments, problem) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    if (sizes) sizes_apply(sizes, &t->arguments);
    settle_self(&t->problem, &t->arguments);
    if (!open_weights(t)) return false;
    if (attune_tensors(problem, &t->arguments, infos, REF_MAX_TENSORS, &t->count) != ATTUNE_OK) {
        refuse_call(problem);
        return false;
    }
    for (size_t i = 0; i < t->count; i++) t->list[i].info = infos[i];
    own_names(t);
    for (size_t i = 0; i < t->count; i++)
        if (!allocate(t, &t->list[i])) {
            tensors_free(t);
            return false;
        }
    return true;
}

bool tensors_create_sized(tensors *t, const attune_problem *problem, const call_sizes *sizes) {
    return create(t, problem, sizes, false);
}

bool tensors_create_unread(tensors *t, const attune_problem *problem, const call_sizes *sizes) {
    return create(t, problem, sizes, true);
}

bool tensors_create(tensors *t, const attune_problem *problem) { return create(t, problem, NULL, false); }

void tensors_free(tensors *t) {
    for (size_t i = 0; i < t->count; i++)
        if (t->list[i].is_owned) free(t->list[i].data);
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS && t->owns_weights; id++) free((void *)t->weights.tensor[id].data);
    *t = (tensors){.count = 0};
}

bool tensors_share(tensors *shared, const tensors *t) {
    *shared = *t;
    shared->owns_weights = false;
    for (size_t i = 0; i < t->count; i++) shared->list[i].is_owned = false;
    for (size_t i = 0; i < t->count; i++) {
        if (!t->list[i].info.is_output) continue;
        if (!allocate(shared, &shared->list[i])) {
            tensors_free(shared);
            return false;
        }
        memcpy(shared->list[i].data, t->list[i].data, t->list[i].count * ref_dtype_bytes(t->list[i].info.dtype));
    }
    return true;
}

tensor *tensors_find(const tensors *t, const char *name) {
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->list[i].info.name, name) == 0) return (tensor *)&t->list[i];
    return NULL;
}

void tensors_arguments(const tensors *t, attune_arguments *arguments) { *arguments = t->arguments; }

ref_call tensors_call(const tensors *t, attune_tensor list[REF_MAX_TENSORS]) {
    for (size_t i = 0; i < t->count; i++) list[i] = t->list[i].info;
    return (ref_call){
        .problem = &t->problem, .arguments = &t->arguments, .tensors = list, .count = t->count, .weights = &t->weights};
}

attune_status tensors_run(const tensors *t, attune_context *context, const attune_kernel *kernel,
                          const attune_schedule *schedule, attune_engine engine) {
    if (engine != ATTUNE_ENGINE_INTERPRETER) return attune_run(context, kernel, &t->arguments);
    return attune_run_interpreted(context, &t->problem, schedule, &t->arguments);
}

void tensors_clear_outputs(tensors *t) {
    for (size_t i = 0; i < t->count; i++) {
        const tensor *const one = &t->list[i];
        if (!one->info.is_output || one->info.is_input) continue;
        const long double pattern = one->info.dtype == ATTUNE_F16 ? -0x1.a5p+15L : -0x1.a5a5a4p+100L;
        for (size_t at = 0; at < one->count; at++) ref_store(one->info.dtype, one->data, (int64_t)at, pattern);
    }
}

/* ---- Copies ---- */

static size_t place(const int64_t strides[4], int64_t a, int64_t b, int64_t c, int64_t d) {
    return (size_t)(a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]);
}

void tensors_scatter(void *storage, const int64_t strides[4], const int64_t dims[4], size_t bytes, const void *dense) {
    const char *from = dense;
    for (int64_t a = 0; a < dims[0]; a++)
        for (int64_t b = 0; b < dims[1]; b++)
            for (int64_t c = 0; c < dims[2]; c++)
                for (int64_t d = 0; d < dims[3]; d++, from += bytes)
                    memcpy((char *)storage + place(strides, a, b, c, d) * bytes, from, bytes);
}

void tensors_gather(void *dense, const int64_t strides[4], const int64_t dims[4], size_t bytes, const void *storage) {
    char *to = dense;
    for (int64_t a = 0; a < dims[0]; a++)
        for (int64_t b = 0; b < dims[1]; b++)
            for (int64_t c = 0; c < dims[2]; c++)
                for (int64_t d = 0; d < dims[3]; d++, to += bytes)
                    memcpy(to, (const char *)storage + place(strides, a, b, c, d) * bytes, bytes);
}

static bool same_output(const tensor *a, const tensor *b, char difference[DIFFERENCE_TEXT]) {
    const size_t bytes = ref_dtype_bytes(a->info.dtype);
    for (size_t i = 0; i < a->count; i++) {
        if (memcmp((const char *)a->data + i * bytes, (const char *)b->data + i * bytes, bytes) == 0) continue;
        const double x = (double)ref_load(a->info.dtype, a->data, (int64_t)i);
        const double y = (double)ref_load(b->info.dtype, b->data, (int64_t)i);
        if (isnan(x) && isnan(y)) continue;
        snprintf(difference, DIFFERENCE_TEXT, "%s differs at element %zu of its storage: %a and %a", a->info.name, i, x,
                 y);
        return false;
    }
    return true;
}

bool tensors_same_outputs(const tensors *a, const tensors *b, char difference[DIFFERENCE_TEXT]) {
    for (size_t i = 0; i < a->count; i++)
        if (a->list[i].info.is_output && !same_output(&a->list[i], &b->list[i], difference)) return false;
    return true;
}
