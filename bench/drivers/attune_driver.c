/* attune behind the protocol of docs/bench.md. usage: attune_driver THREADS */
#define _GNU_SOURCE
#include "driver.h"

#include <attune.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRODUCT_KEYS = 2, MAX_TENSORS = 48 };

static attune_context *context;

static struct {
    driver_problem problem;
    attune_problem attention;
    attune_kernel *kernel;
    attune_mha *mha;
    attune_arguments arguments;
    void *buffers[MAX_TENSORS];
    size_t count;
    void *workspace;
    size_t workspace_bytes;
} now;

static bool fail(char text[DRIVER_TEXT]) {
    snprintf(text, DRIVER_TEXT, "%s", attune_last_message());
    return false;
}

/* The bench's problem in attune's words. Two products are a block over keys that are there: all but two projections is
 * next to nothing then. */
static bool say(const driver_problem *p, attune_problem *problem, char text[DRIVER_TEXT]) {
    char words[DRIVER_TEXT], cache[64] = "", scales[64] = "";
    const char *const dtype = p->is_bf16 ? "bf16" : "f32";
    if (*p->kv) snprintf(cache, sizeof cache, ",k_dtype=%s,v_dtype=%s", p->kv, p->kv);
    if (*p->scales) snprintf(scales, sizeof scales, ",k_scales=%s,v_scales=%s", p->scales, p->scales);
    if (p->kind == DRIVER_ATTENTION)
        snprintf(words, sizeof words,
                 "dtype=%s,batch=%" PRId64 ",num_heads=%" PRId64 ",num_kv_heads=%" PRId64 ",seq_q=%" PRId64
                 ",seq_kv=%" PRId64 ",head_dim=%" PRId64 ",is_causal=%d,causal_align=%s%s%s",
                 dtype, p->batch, p->heads, p->kv_heads, p->rows, p->keys, p->dim, p->is_causal,
                 p->is_causal && p->rows != p->keys ? "bottom_right" : "top_left", cache, scales);
    else if (p->kind == DRIVER_BLOCK)
        snprintf(words, sizeof words,
                 "dtype=%s,batch=%" PRId64 ",embed_dim=%" PRId64 ",num_heads=%" PRId64 ",seq_q=%" PRId64
                 ",is_causal=%d",
                 dtype, p->batch, p->embed, p->heads, p->rows, p->is_causal);
    else
        snprintf(words, sizeof words,
                 "dtype=%s,batch=%" PRId64 ",embed_dim=%" PRId64 ",num_heads=%" PRId64 ",seq_q=%" PRId64
                 ",seq_kv=%d,kv_projected=1",
                 dtype, p->batch, p->embed, p->heads, p->rows, PRODUCT_KEYS);
    *problem = (attune_problem)ATTUNE_PROBLEM_INIT;
    return attune_problem_parse(problem, words) == ATTUNE_OK || fail(text);
}

static void *read_input(const char *name, attune_dtype dtype, int64_t count, char text[DRIVER_TEXT]) {
    switch (dtype) {
    case ATTUNE_F32: return driver_read(&now.problem, name, count, text);
    case ATTUNE_BF16: return driver_read_bf16(&now.problem, name, count, text);
    case ATTUNE_F16: return driver_read_f16(&now.problem, name, count, text);
    default: return driver_read_codes(&now.problem, name, count, text);
    }
}

static int64_t elements(const int64_t *dims, int rank) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++) count *= dims[i];
    return count;
}

static bool open_tensors(char text[DRIVER_TEXT]) {
    attune_tensor tensors[MAX_TENSORS];
    if (attune_arguments_init(&now.arguments, &now.attention) != ATTUNE_OK ||
        attune_tensors(&now.attention, &now.arguments, tensors, MAX_TENSORS, &now.count) != ATTUNE_OK)
        return fail(text);
    for (size_t i = 0; i < now.count; i++) {
        const attune_tensor *const t = &tensors[i];
        if (strcmp(t->name, "packed_weights") == 0) continue;
        const int64_t count = elements(t->dims, t->rank);
        now.buffers[i] =
            t->is_input ? read_input(t->name, t->dtype, count, text) : driver_alloc((size_t)count * 4, text);
        if (!now.buffers[i]) return false;
        memcpy((char *)&now.arguments + t->pointer_offset, &now.buffers[i], sizeof(void *));
    }
    return true;
}

static bool read_weights(attune_mha_weights *weights, char text[DRIVER_TEXT]) {
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        attune_weight *const w = &weights->tensor[id];
        const bool is_packed = id == ATTUNE_QKV_WEIGHT || id == ATTUNE_QKV_BIAS;
        if (!w->rank ||
            (is_packed != (now.problem.kind == DRIVER_BLOCK) && id != ATTUNE_OUT_WEIGHT && id != ATTUNE_OUT_BIAS))
            continue;
        w->data = read_input(attune_weight_name((attune_weight_id)id), w->dtype, elements(w->dims, w->rank), text);
        if (!w->data) return false;
    }
    return true;
}

static bool open_block(char text[DRIVER_TEXT]) {
    attune_mha_weights weights = {.struct_size = sizeof weights};
    if (attune_mha_weights_init(&weights, &now.attention, ATTUNE_OUT_IN) != ATTUNE_OK) return fail(text);
    bool good = read_weights(&weights, text);
    if (good && attune_mha_create(context, &now.attention, NULL, &weights, &now.mha) != ATTUNE_OK) good = fail(text);
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) free((void *)weights.tensor[id].data);
    if (good) now.arguments.packed_weights = attune_mha_packed_weights(now.mha, &(size_t){0});
    return good;
}

static bool open_workspace(char text[DRIVER_TEXT]) {
    const attune_kernel *const kernel = now.mha ? attune_mha_kernel(now.mha) : now.kernel;
    if (attune_workspace_size(context, kernel, &now.arguments, &now.workspace_bytes) != ATTUNE_OK) return fail(text);
    if (now.workspace_bytes && !(now.workspace = driver_alloc(now.workspace_bytes, text))) return false;
    now.arguments.workspace = now.workspace;
    now.arguments.workspace_bytes = now.workspace_bytes;
    return true;
}

/* Whether the kernel multiplies bf16 as bf16, or widens it. */
static bool remark(char text[DRIVER_TEXT]) {
    attune_kernel_info info = {.struct_size = sizeof info};
    const attune_kernel *const kernel = now.mha ? attune_mha_kernel(now.mha) : now.kernel;
    if (attune_kernel_get_info(kernel, &info) != ATTUNE_OK) return fail(text);
    if (now.problem.is_bf16 && info.arithmetic != ATTUNE_BF16)
        snprintf(text, DRIVER_TEXT, "storage only: computed in f32");
    return true;
}

/* "workspace": bytes that a call of what is prepared needs beside its tensors. */
static bool ask(const char *line, char text[DRIVER_TEXT]) {
    if (strcmp(line, "workspace") != 0 || !(now.kernel || now.mha)) return false;
    snprintf(text, DRIVER_TEXT, "%zu", now.workspace_bytes);
    return true;
}

static void drop(void) {
    attune_kernel_release(now.kernel);
    attune_mha_destroy(now.mha);
    for (size_t i = 0; i < now.count; i++) free(now.buffers[i]);
    free(now.workspace);
    memset(&now, 0, sizeof now);
}

static bool prepare(const driver_problem *p, char text[DRIVER_TEXT]) {
    memset(&now, 0, sizeof now);
    now.problem = *p;
    if (!say(p, &now.attention, text) || !open_tensors(text)) return false;
    if (p->kind != DRIVER_ATTENTION) {
        if (!open_block(text)) return false;
    } else if (attune_compile(context, &now.attention, NULL, &now.kernel) != ATTUNE_OK) {
        return fail(text);
    }
    return open_workspace(text) && remark(text);
}

static bool call(char text[DRIVER_TEXT]) {
    const attune_status status =
        now.mha ? attune_mha_run(now.mha, &now.arguments, NULL) : attune_run(context, now.kernel, &now.arguments);
    return status == ATTUNE_OK || fail(text);
}

static void output(float *out) {
    const int64_t count = driver_out_count(&now.problem);
    const uint16_t *const narrow = now.arguments.out.data;
    if (!now.problem.is_bf16) memcpy(out, now.arguments.out.data, (size_t)count * sizeof *out);
    for (int64_t i = 0; now.problem.is_bf16 && i < count; i++) out[i] = driver_from_bf16(narrow[i]);
}

int main(int argc, char **argv) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_machine_info machine = {.struct_size = sizeof machine};
    char version[DRIVER_TEXT];
    options.max_workers = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    if (attune_context_create(&options, &context) != ATTUNE_OK ||
        attune_get_machine_info(context, &machine) != ATTUNE_OK) {
        fprintf(stderr, "%s\n", attune_last_message());
        return 1;
    }
    snprintf(version, sizeof version, "attune %s (%s, LLVM %s)", attune_version(), machine.isa, machine.llvm);
    const driver d = {"attune", version, prepare, call, output, drop, ask};
    const int code = driver_serve(&d);
    attune_context_destroy(context);
    return code;
}
