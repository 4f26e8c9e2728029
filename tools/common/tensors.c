/* One list of tensors with their memory and, in the same order, the pointers of a call; a second call may share the
 * inputs of the first. */
#include "common/tensors.h"

#include "common/pages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

attune_status tensors_run(const tensors *t, attune_context *context, const attune_kernel *kernel, const char *schedule,
                          attune_engine engine) {
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
