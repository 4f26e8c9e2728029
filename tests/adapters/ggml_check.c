#include "ggml_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

bool sees_past(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)stream;
    return key <= row + c->at;
}

bool sees_mixed_step(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)stream;
    const int64_t prompt = c->rows - 3;
    if (row >= prompt) return key < 120 && key % 4 == row - prompt + 1;
    return key < 120 ? key % 4 == 0 : key - 120 <= row;
}

uint16_t distance(const fake_case *c, int64_t head, int64_t row, int64_t key) {
    (void)head;
    return f16_of(-fabs((double)(row + c->at - key)));
}

ggml_device *open_device(void) {
    fake_reset();
    ggml_reg *const reg = ggml_backend_init();
    assert_non_null(reg);
    assert_int_equal(reg->api_version, GGML_ABI_API_VERSION);
    assert_int_equal(reg->get_device_count(reg), 1);
    assert_null(reg->get_device(reg, 1));
    return reg->get_device(reg, 0);
}

void set_threads(ggml_backend *backend, int threads) {
    ggml_reg *const reg = backend->device->reg;
    void *const found = reg->get_proc_address(reg, "ggml_backend_set_n_threads");
    ggml_set_n_threads *set;
    memcpy(&set, &found, sizeof set);
    set(backend, threads);
}

ggml_backend *open_backend(void) {
    ggml_device *const device = open_device();
    ggml_backend *const backend = device->init_backend(device, NULL);
    assert_non_null(backend);
    set_threads(backend, 2);
    return backend;
}

int compute(ggml_backend *backend, ggml_tensor *node) {
    ggml_graph graph = {.n_nodes = 1, .nodes = &node};
    return backend->graph_compute(backend, &graph);
}

bool has_logged(const char *text) { return strstr(fake.log, text) != NULL; }

/* Compiled kernels may round products with quantised keys to bf16, which the plug-in's own do not. */
static double allowed(const fake_case *c) {
    const bool is_exact = c->k_type == F32 || c->k_type == F16 || c->k_type == BF16 || getenv("ATTUNE_COMPILE");
    return is_exact ? 2e-5 : 1e-2;
}

void check_case(ggml_backend *backend, const fake_case *c, const char *name) {
    ggml_tensor *const node = make_node(c);
    float *const expected = malloc((size_t)(node->ne[0] * node->ne[1] * node->ne[2] * node->ne[3]) * sizeof *expected);
    reference(node, expected);
    fake.cpu_nodes = 0;
    if (!backend->device->supports_op(backend->device, node)) fail_msg("%s is not supported: %s", name, fake.log);
    assert_int_equal(compute(backend, node), GGML_ABI_SUCCESS);
    if (fake.cpu_nodes) fail_msg("%s was computed by the CPU: %s", name, fake.log);
    const double worst = worst_difference(node, expected);
    if (!(worst < allowed(c))) fail_msg("%s differs by %g: %s", name, worst, fake.log);
    free(expected);
    free_node(node);
}

void check(const fake_case *c, const char *name, const char *kernel) {
    ggml_backend *const backend = open_backend();
    check_case(backend, c, name);
    if (!has_logged(kernel)) fail_msg("%s ran by another kernel: %s", name, fake.log);
    backend->free(backend);
    assert_int_equal(fake.live_backends, 0);
}
