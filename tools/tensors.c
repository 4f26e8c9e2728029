#include "tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Text ---- */

bool problem_from_text(const char *text, attune_problem *problem) {
    *problem = (attune_problem)ATTUNE_PROBLEM_INIT;
    if (attune_problem_parse(text, problem) == ATTUNE_OK && attune_problem_check(problem) == ATTUNE_OK) return true;
    tool_library_error(NULL);
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

/* ---- Storage ---- */

bool problem_resolve(const attune_problem *problem, attune_problem *resolved) {
    attune_arguments arguments = {.struct_size = sizeof arguments};
    if (attune_arguments_init(&arguments, problem) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    *resolved = *problem;
    if (!resolved->num_kv_heads) resolved->num_kv_heads = resolved->num_heads;
    if (!resolved->seq_kv) resolved->seq_kv = resolved->seq_q;
    if (!resolved->head_dim_v) resolved->head_dim_v = resolved->head_dim;
    memcpy(resolved->q_strides, arguments.q_strides, sizeof arguments.q_strides);
    memcpy(resolved->k_strides, arguments.k_strides, sizeof arguments.k_strides);
    memcpy(resolved->v_strides, arguments.v_strides, sizeof arguments.v_strides);
    memcpy(resolved->out_strides, arguments.out_strides, sizeof arguments.out_strides);
    memcpy(resolved->lse_strides, arguments.lse_strides, sizeof arguments.lse_strides);
    return true;
}

static float *allocate(const int64_t *strides, const int64_t *dims, int rank, size_t *count) {
    /* The problem was checked: the last element's index cannot overflow. */
    size_t last = 0;
    for (int i = 0; i < rank; i++) last += (size_t)((dims[i] - 1) * strides[i]);
    *count = last + 1;
    const size_t bytes = (*count * sizeof(float) + 63) & ~(size_t)63;
    float *const storage = *count <= PTRDIFF_MAX / sizeof(float) - 64 ? aligned_alloc(64, bytes) : NULL;
    if (storage)
        memset(storage, 0, bytes);
    else
        tool_error("out of memory: a tensor needs %zu elements", *count);
    return storage;
}

bool tensors_create(tensors *t, const attune_problem *problem) {
    *t = (tensors){0};
    if (!problem_resolve(problem, &t->problem)) return false;
    const attune_problem *const p = &t->problem;
    const int64_t q[] = {p->batch, p->num_heads, p->seq_q, p->head_dim};
    const int64_t k[] = {p->batch, p->num_kv_heads, p->seq_kv, p->head_dim};
    const int64_t v[] = {p->batch, p->num_kv_heads, p->seq_kv, p->head_dim_v};
    const int64_t out[] = {p->batch, p->num_heads, p->seq_q, p->head_dim_v};
    if ((t->q = allocate(p->q_strides, q, 4, &t->q_count)) && (t->k = allocate(p->k_strides, k, 4, &t->k_count)) &&
        (t->v = allocate(p->v_strides, v, 4, &t->v_count)) &&
        (t->out = allocate(p->out_strides, out, 4, &t->out_count)) &&
        (!p->has_lse || (t->lse = allocate(p->lse_strides, out, 3, &t->lse_count))))
        return true;
    tensors_free(t);
    return false;
}

void tensors_free(tensors *t) {
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->out);
    free(t->lse);
    *t = (tensors){0};
}

void tensors_arguments(const tensors *t, attune_arguments *arguments) {
    *arguments = (attune_arguments){.struct_size = sizeof *arguments};
    attune_arguments_init(arguments, &t->problem); /* succeeded once for the same problem */
    arguments->q = t->q;
    arguments->k = t->k;
    arguments->v = t->v;
    arguments->out = t->out;
    arguments->lse = t->lse;
}

attune_status tensors_run(const tensors *t, attune_context *context, const attune_kernel *kernel,
                          const attune_schedule *schedule, attune_engine engine) {
    attune_arguments arguments;
    tensors_arguments(t, &arguments);
    if (engine == ATTUNE_ENGINE_JIT) return attune_run(context, kernel, &arguments);
    return attune_run_interpreted(context, &t->problem, schedule, &arguments);
}

void tensors_clear_outputs(tensors *t) {
    static const float pattern = -0x1.a5a5a4p+100f;
    for (size_t i = 0; i < t->out_count; i++) t->out[i] = pattern;
    for (size_t i = 0; i < t->lse_count; i++) t->lse[i] = pattern;
}

static size_t place(const int64_t strides[4], int64_t a, int64_t b, int64_t c, int64_t d) {
    return (size_t)(a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]);
}

void tensors_scatter(float *storage, const int64_t strides[4], const int64_t dims[4], const float *dense) {
    for (int64_t a = 0; a < dims[0]; a++)
        for (int64_t b = 0; b < dims[1]; b++)
            for (int64_t c = 0; c < dims[2]; c++)
                for (int64_t d = 0; d < dims[3]; d++) storage[place(strides, a, b, c, d)] = *dense++;
}

void tensors_gather(float *dense, const int64_t strides[4], const int64_t dims[4], const float *storage) {
    for (int64_t a = 0; a < dims[0]; a++)
        for (int64_t b = 0; b < dims[1]; b++)
            for (int64_t c = 0; c < dims[2]; c++)
                for (int64_t d = 0; d < dims[3]; d++) *dense++ = storage[place(strides, a, b, c, d)];
}

/* ---- Inputs ---- */

static const char *const kind_names[INPUT_KIND_COUNT] = {
    "ordinary", "large", "overflow", "denormal", "constant", "nonfinite",
};

const char *input_kind_name(input_kind kind) { return kind_names[kind]; }

static float draw(input_kind kind, bool is_value, tool_random *random) {
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    const float normal = tool_random_normal(random);
    switch (kind) {
    case INPUT_LARGE: return is_value ? normal : 4 * normal;
    case INPUT_OVERFLOW: return is_value ? normal : ldexpf(normal, (int)tool_random_range(random, 4, 126));
    case INPUT_DENORMAL: return tool_random_chance(random, 50) ? normal * 0x1p-130f : normal;
    case INPUT_CONSTANT: return is_value ? roundf(normal) : 0.5f * (float)tool_random_chance(random, 50);
    case INPUT_NONFINITE: return tool_random_chance(random, 2) ? odd[tool_random_range(random, 0, 2)] : normal;
    default: return normal;
    }
}

void tensors_fill(tensors *t, input_kind kind, uint64_t seed) {
    tool_random random = {seed};
    for (size_t i = 0; i < t->q_count; i++) t->q[i] = draw(kind, false, &random);
    for (size_t i = 0; i < t->k_count; i++) t->k[i] = draw(kind, false, &random);
    for (size_t i = 0; i < t->v_count; i++) t->v[i] = draw(kind, true, &random);
}

bool tensors_same_bits(const float *a, const float *b, size_t count, size_t *where) {
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) == 0 || (isnan(a[i]) && isnan(b[i]))) continue;
        *where = i;
        return false;
    }
    return true;
}
