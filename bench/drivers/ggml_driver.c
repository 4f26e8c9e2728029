/* ggml behind the protocol of docs/bench.md. usage: ggml_driver THREADS
 *
 * Attention is ggml's flash_attn_ext, whose queries and results are always f32. Methods for keys, values and weights:
 * `native`, of the problem's dtype, and for bf16 `f16` too, which ggml is often faster with. For keys and values of i8
 * `native` is q8_0: 8 bits as well, with a scale for every 32 numbers. */
#include "driver.h"

#include <ggml-cpu.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 256 };

static int all_threads = 1;

static struct {
    driver_problem problem;
    enum ggml_type type; /* of keys, values and weights */
    int threads;
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    struct ggml_tensor *result;
    struct ggml_cplan plan;
    void *work;
} now;

/* A tensor of an input, with dims innermost first. NULL after writing why. */
static struct ggml_tensor *load(const char *name, enum ggml_type type, int64_t d0, int64_t d1, int64_t d2, int64_t d3,
                                char text[DRIVER_TEXT]) {
    const int64_t count = d0 * d1 * d2 * d3;
    float *const values = driver_read(&now.problem, name, count, text);
    if (!values) return NULL;
    struct ggml_tensor *const t = ggml_new_tensor_4d(now.context, type, d0, d1, d2, d3);
    if (type == GGML_TYPE_F32)
        memcpy(t->data, values, (size_t)count * sizeof *values);
    else if (type == GGML_TYPE_F16)
        ggml_fp32_to_fp16_row(values, t->data, count);
    else if (type == GGML_TYPE_Q8_0)
        ggml_quantize_chunk(type, values, t->data, 0, count / d0, d0, NULL);
    else
        ggml_fp32_to_bf16_row(values, t->data, count);
    free(values);
    return t;
}

static struct ggml_tensor *causal_mask(void) {
    const driver_problem *const p = &now.problem;
    struct ggml_tensor *const mask = ggml_new_tensor_2d(now.context, GGML_TYPE_F16, p->keys, p->rows);
    ggml_fp16_t *const data = mask->data;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->keys; j++)
            data[i * p->keys + j] = ggml_fp32_to_fp16(j > i + p->keys - p->rows ? -INFINITY : 0);
    return mask;
}

/* q, k, v: [dim, length, heads, batch], innermost first; the result is [dim, heads, rows, batch]. */
static struct ggml_tensor *attend(struct ggml_tensor *q, struct ggml_tensor *k, struct ggml_tensor *v) {
    struct ggml_tensor *const mask = now.problem.is_causal ? causal_mask() : NULL;
    struct ggml_tensor *const out =
        ggml_flash_attn_ext(now.context, q, k, v, mask, (float)driver_scale(&now.problem), 0, 0);
    ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
    return out;
}

static struct ggml_tensor *build_attention(char text[DRIVER_TEXT]) {
    const driver_problem *const p = &now.problem;
    struct ggml_tensor *const q = load("q", GGML_TYPE_F32, p->dim, p->rows, p->heads, p->batch, text);
    struct ggml_tensor *const k = q ? load("k", now.type, p->dim, p->keys, p->kv_heads, p->batch, text) : NULL;
    struct ggml_tensor *const v = k ? load("v", now.type, p->dim, p->keys, p->kv_heads, p->batch, text) : NULL;
    return v ? attend(q, k, v) : NULL;
}

static struct ggml_tensor *project(struct ggml_tensor *x, const char *name, int64_t outputs, char text[DRIVER_TEXT]) {
    char full[64];
    snprintf(full, sizeof full, "%s_weight", name);
    struct ggml_tensor *const weight = load(full, now.type, now.problem.embed, outputs, 1, 1, text);
    snprintf(full, sizeof full, "%s_bias", name);
    struct ggml_tensor *const bias = weight ? load(full, GGML_TYPE_F32, outputs, 1, 1, 1, text) : NULL;
    return bias ? ggml_add(now.context, ggml_mul_mat(now.context, weight, x), bias) : NULL;
}

/* Third `part` of the columns of a projection, by head. */
static struct ggml_tensor *part_of(struct ggml_tensor *qkv, int64_t part) {
    const driver_problem *const p = &now.problem;
    return ggml_view_4d(now.context, qkv, p->dim, p->rows, p->heads, p->batch, qkv->nb[1],
                        (size_t)p->dim * sizeof(float), qkv->nb[1] * (size_t)p->rows,
                        (size_t)(part * p->embed) * sizeof(float));
}

static struct ggml_tensor *build_projections(char text[DRIVER_TEXT]) {
    const driver_problem *const p = &now.problem;
    const int64_t tokens = p->batch * p->rows;
    const bool is_block = p->kind == DRIVER_BLOCK;
    struct ggml_tensor *t = load("x", GGML_TYPE_F32, p->embed, tokens, 1, 1, text);
    if (t) t = project(t, is_block ? "qkv" : "q", is_block ? 3 * p->embed : p->embed, text);
    if (t && is_block) {
        /* Keys and values are copied to their own dtype, as a cache would hold them. */
        struct ggml_tensor *const k = ggml_cast(now.context, part_of(t, 1), now.type);
        struct ggml_tensor *const v = ggml_cast(now.context, part_of(t, 2), now.type);
        t = ggml_reshape_2d(now.context, attend(part_of(t, 0), k, v), p->embed, tokens);
    }
    return t ? project(t, "out", p->embed, text) : NULL;
}

/* What all tensors together may need: inputs, and some results of rows and columns each. */
static size_t memory_needed(const driver_problem *p) {
    const int64_t heads = p->batch * p->dim * (2 * p->heads * p->rows + 2 * p->kv_heads * p->keys);
    const int64_t rows =
        p->kind == DRIVER_ATTENTION ? 0 : p->batch * p->rows * p->embed * 16 + 5 * p->embed * (p->embed + 1);
    return (size_t)(heads + rows + p->rows * p->keys) * sizeof(float) + MAX_TENSORS * (ggml_tensor_overhead() + 64) +
           ggml_graph_overhead();
}

static void drop(void) {
    if (now.context) ggml_free(now.context);
    free(now.work);
    memset(&now, 0, sizeof now);
}

/* The type of keys, values and weights. */
static bool choose_type(const driver_problem *p, char text[DRIVER_TEXT]) {
    static const struct {
        const char *name;
        enum ggml_type type;
    } types[] = {{"f32", GGML_TYPE_F32}, {"bf16", GGML_TYPE_BF16}, {"f16", GGML_TYPE_F16}, {"i8", GGML_TYPE_Q8_0}};
    const char *wanted = *p->kv ? p->kv : p->is_bf16 ? "bf16" : "f32";
    if (strcmp(p->method, "f16") == 0) {
        if (strcmp(wanted, "bf16") != 0) {
            snprintf(text, DRIVER_TEXT, "f16 in place of bf16 only");
            return false;
        }
        wanted = "f16";
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, wanted) == 0) {
            now.type = types[i].type;
            return true;
        }
    snprintf(text, DRIVER_TEXT, "no type like %s", wanted);
    return false;
}

static bool prepare(const driver_problem *p, char text[DRIVER_TEXT]) {
    memset(&now, 0, sizeof now);
    now.problem = *p;
    now.threads = p->threads ? (int)p->threads : all_threads;
    if (!choose_type(p, text)) return false;
    const struct ggml_init_params memory = {.mem_size = memory_needed(p)};
    if (!(now.context = ggml_init(memory))) {
        snprintf(text, DRIVER_TEXT, "out of memory: %zu bytes", memory.mem_size);
        return false;
    }
    now.result = p->kind == DRIVER_ATTENTION ? build_attention(text) : build_projections(text);
    if (!now.result) return false;
    now.graph = ggml_new_graph(now.context);
    ggml_build_forward_expand(now.graph, now.result);
    now.plan = ggml_graph_plan(now.graph, now.threads, NULL);
    if (now.plan.work_size && !(now.work = driver_alloc(now.plan.work_size, text))) return false;
    now.plan.work_data = now.work;
    return true;
}

static bool call(char text[DRIVER_TEXT]) {
    const enum ggml_status status = ggml_graph_compute(now.graph, &now.plan);
    if (status != GGML_STATUS_SUCCESS) snprintf(text, DRIVER_TEXT, "%s", ggml_status_to_string(status));
    return status == GGML_STATUS_SUCCESS;
}

static void output(float *out) {
    const driver_problem *const p = &now.problem;
    const float *const result = now.result->data;
    if (p->kind != DRIVER_ATTENTION) {
        memcpy(out, result, (size_t)driver_out_count(p) * sizeof *out);
        return;
    }
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < p->rows; i++)
                memcpy(out + ((b * p->heads + h) * p->rows + i) * p->dim,
                       result + ((b * p->rows + i) * p->heads + h) * p->dim, (size_t)p->dim * sizeof *out);
}

int main(int argc, char **argv) {
    char version[DRIVER_TEXT];
    if (argc == 2) all_threads = atoi(argv[1]);
    if (all_threads < 1) {
        fprintf(stderr, "usage: ggml_driver THREADS\n");
        return 2;
    }
    ggml_cpu_init();
    snprintf(version, sizeof version, "ggml %s", ggml_version());
    return driver_serve(&(driver){"native,f16", version, prepare, call, output, drop, NULL});
}
