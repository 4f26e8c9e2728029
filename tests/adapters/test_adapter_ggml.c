/* The plug-in of ggml in a host of its own (ggml_host.h): every form of mask and every type of cache against f64, with
 * NaN in all that nobody sees; what is left to the host; versions. */
#include "ggml_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Masks. Each test has a head size of its own, so that its kernels are new and the log names them ---- */

static bool sees_first(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)stream, (void)row;
    return key < c->at;
}
static bool sees_past_of_stream(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    return key <= row + c->at + 9 * stream;
}
/* The row itself is no key that it sees. */
static bool sees_before(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)stream;
    return key < row + c->at && key >= row + c->at - 20 - row % 2;
}
static bool sees_window(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    return sees_past(c, stream, row, key) && key > row + c->at - 24;
}
/* A cache of a ring: the oldest keys were overwritten. */
static bool sees_ring(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)stream;
    const int64_t age = ((row + c->at - key) % c->keys + c->keys) % c->keys;
    return age < c->keys - 20;
}
static bool sees_holes(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)c, (void)stream;
    return (key + row) % 5 != 0;
}
/* The keys of several sequences alternate, and rows are of one each. */
static bool sees_own_sequence(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)c, (void)stream;
    return key % 4 == row % 4 && key < 90 + row;
}
/* As a mask with n_kv_max has them: few keys, anywhere. */
static bool sees_chosen(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)c, (void)stream;
    return (7 * key + 3 * row) % 11 < 2;
}
/* Each row has a part of its own. */
static bool sees_own_part(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)c, (void)stream;
    return key >= 30 * row && key < 30 * row + 20;
}
static bool sees_nothing_in_some_rows(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    (void)c;
    return row % 3 != 1 && key <= row + 5 && stream != 1;
}
static uint16_t wave(const fake_case *c, int64_t head, int64_t row, int64_t key) {
    (void)c;
    return f16_of(sin((double)(7 * row + 3 * key + 5 * head)));
}

static void a_mask_that_is_absent_or_a_length_is_no_mask(void **state) {
    (void)state;
    const fake_case none = {.heads = 4, .kv_heads = 2, .rows = 3, .keys = 50, .dim = 40, .has_no_mask = true};
    check(&none, "no mask", "head_dim=40,head_dim_v=40,seq_kv=dynamic,softmax_scale=dynamic,seq_q=dynamic,batch=2,k");
    fake_case c = {.heads = 4, .kv_heads = 2, .keys = 256, .dim = 48, .sees = sees_first, .at = 77, .mask_rows = 64};
    check(&c, "padding", "head_dim=48,head_dim_v=48,seq_kv=dynamic,softmax_scale=dynamic,seq_q=1,batch=2,k");
    c.rows = 5, c.streams = 2, c.dim = 56;
    check(&c, "padding of two streams", "seq_q=dynamic,batch=2,k");
}

static void causality_is_found_at_any_offset(void **state) {
    (void)state;
    fake_case c = {.heads = 2, .rows = 70, .keys = 128, .dim = 40, .sees = sees_past, .mask_rows = 96};
    check(&c, "a first prompt", "is_causal=1");
    c.at = 50, c.dim = 48;
    check(&c, "a later prompt", "is_causal=1");
    c.streams = 3, c.rows = 20, c.sees = sees_past_of_stream, c.dim = 56;
    check(&c, "streams of other lengths", "is_causal=1,has_kv_lens=1");
    c.streams = 2, c.sees = sees_past, c.is_one_mask = true, c.dim = 72;
    check(&c, "one mask for two streams", "is_causal=1");
}

static void windows_and_ranges_are_found(void **state) {
    (void)state;
    fake_case c = {.heads = 4, .kv_heads = 1, .rows = 60, .keys = 160, .dim = 40, .sees = sees_window, .at = 80};
    check(&c, "a window", "is_causal=1,window_left=23");
    c.streams = 2, c.dim = 48;
    check(&c, "a window in two streams", "is_causal=1,window_left=23");
    c.at = 3, c.dim = 56;
    check(&c, "a window that begins with the keys", "is_causal=1,window_left=23");
    c.at = 40, c.dim = 64, c.sees = sees_before;
    check(&c, "ranges", "mask_mod=\"kv >= lo[q] & kv < hi[q]\"");
    c.sees = sees_window, c.dim_v = 32;
    check(&c, "a window whose values are of another width", "is_causal=1,window_left=23");
    c = (fake_case){.heads = 4, .kv_heads = 1, .keys = 160, .dim = 80, .sees = sees_window, .at = 80};
    check(&c, "a window of one row", "seq_q=1,batch=2,k");
}

static void few_keys_are_lists(void **state) {
    (void)state;
    fake_case c = {.heads = 6, .kv_heads = 2, .rows = 8, .keys = 200, .dim = 40, .sees = sees_own_sequence};
    check(&c, "sequences in one cache", "kv_ids=query");
    c.rows = 5, c.sees = sees_own_part, c.dim = 48, c.has_sinks = true;
    check(&c, "parts of few rows", "kv_ids=query");
    c.streams = 2, c.dim = 56, c.dim_v = 24;
    check(&c, "parts of two streams", "kv_ids=query");
    c = (fake_case){.heads = 8, .rows = 1, .keys = 500, .dim = 96, .dim_v = 64, .v_in_k = true, .sees = sees_chosen};
    check(&c, "chosen keys of multi-head latent attention", "kv_ids=query");
}

static void few_keys_with_biases_are_lists_too(void **state) {
    (void)state;
    fake_case c = {.heads = 6, .kv_heads = 2, .rows = 3, .keys = 200, .dim = 40, .sees = sees_chosen, .bias = wave};
    check(&c, "chosen keys with biases", "has_kv_id_lens=1,attn_bias_dims=qk");
    c.max_bias = 8, c.dim = 48, c.streams = 2, c.has_sinks = true;
    check(&c, "chosen keys with slopes", "has_kv_id_lens=1,attn_bias_dims=hqk");
    c.rows = 1, c.dim = 64, c.k_type = c.v_type = Q4_0;
    check(&c, "chosen keys of a token with slopes", "has_kv_id_lens=1,attn_bias_dims=hqk");
    c = (fake_case){.heads = 2, .rows = 40, .keys = 80, .dim = 56, .sees = sees_past, .bias = wave, .at = 40};
    check(&c, "biases of many rows", "attn_bias_dims=qk,bias_dtype=f16");
}

static void rows_of_a_sequence_are_a_group(void **state) {
    (void)state;
    fake_case c = {.heads = 6, .kv_heads = 2, .rows = 43, .keys = 200, .dim = 40, .sees = sees_mixed_step};
    check(&c, "a step of a prompt and three tokens", "is_ragged=1");
    c.streams = 2, c.k_type = c.v_type = Q8_0, c.dim = 64, c.has_sinks = true;
    check(&c, "such a step in two streams", "is_ragged=1");
}

static void rings_are_windows_of_a_list(void **state) {
    (void)state;
    fake_case c = {.heads = 4, .kv_heads = 2, .rows = 30, .keys = 96, .dim = 40, .sees = sees_ring, .at = 30};
    check(&c, "a ring", "page_size=1,has_kv_lens=1,is_causal=1,window_left=75");
    c.rows = 1, c.dim = 48, c.streams = 2;
    check(&c, "a ring of one row", "kv >= next[q] & kv < hi[q]");
}

static void other_masks_are_a_bias(void **state) {
    (void)state;
    fake_case c = {.heads = 4, .kv_heads = 2, .rows = 9, .keys = 96, .dim = 40, .sees = sees_holes};
    check(&c, "holes", "attn_bias_dims=qk");
    c.sees = sees_past, c.bias = wave, c.dim = 48;
    check(&c, "a bias", "attn_bias_dims=qk");
    c.is_mask_of_heads = true, c.dim = 56, c.streams = 2;
    check(&c, "a bias of heads", "attn_bias_dims=hqk");
}

static void rows_that_see_nothing_are_0(void **state) {
    (void)state;
    fake_case c = {.heads = 2, .rows = 24, .keys = 64, .dim = 40, .streams = 2, .sees = sees_nothing_in_some_rows};
    check(&c, "empty rows", "k_dtype=f16");
    c = (fake_case){.heads = 2, .rows = 4, .keys = 64, .dim = 48, .sees = sees_first, .has_sinks = true};
    check(&c, "a mask that hides everything", "");
}

static void alibi_is_recognised(void **state) {
    (void)state;
    fake_case c = {.heads = 6,
                   .kv_heads = 3,
                   .rows = 30,
                   .keys = 96,
                   .dim = 40,
                   .sees = sees_past,
                   .bias = distance,
                   .at = 40,
                   .max_bias = 8};
    check(&c, "ALiBi of a prompt", "is_causal=1,has_alibi_slopes=1");
    c.rows = 1, c.dim = 48;
    check(&c, "ALiBi of a token", "is_causal=1,has_alibi_slopes=1");
    c.rows = 30, c.dim = 72, c.sees = NULL, c.at = 66;
    check(&c, "ALiBi that sees all keys", "batch=2,has_alibi_slopes=1");
    c.rows = c.keys = 50, c.dim = 80, c.at = 0, c.streams = 2;
    check(&c, "ALiBi of an encoder", "batch=2,has_alibi_slopes=1");
    c.dim = 88, c.at = 1;
    check(&c, "distances to a key of another place", "score_mod=\"score + slope[h] * mask[q, kv]\"");
    c.keys = 96, c.streams = 1, c.sees = sees_past, c.at = 40;
    c.rows = 10, c.bias = wave, c.dim = 56;
    check(&c, "a mask times slopes", "score_mod=\"score + slope[h] * mask[q, kv]\"");
    c.bias = NULL, c.dim = 64;
    check(&c, "slopes times 0", "is_causal=1,k_dtype");
}

static void scores_have_caps_and_sinks(void **state) {
    (void)state;
    fake_case c = {.heads = 4,
                   .kv_heads = 2,
                   .rows = 20,
                   .keys = 40,
                   .dim = 40,
                   .sees = sees_past,
                   .at = 20,
                   .soft_cap = 2.5F,
                   .has_sinks = true};
    check(&c, "a cap and sinks", "logits_soft_cap=2.5");
    c = (fake_case){
        .heads = 8, .kv_heads = 1, .keys = 70, .dim = 96, .dim_v = 64, .v_in_k = true, .sees = sees_first, .at = 61};
    check(&c, "V in K", "v_in_k=1");
}

static void every_type_of_cache_is_computed(void **state) {
    (void)state;
    static const int types[][2] = {{F32, F32},   {BF16, F16},  {Q8_0, Q8_0},     {Q4_0, Q4_0}, {Q4_1, Q4_1},
                                   {Q5_0, Q5_0}, {Q5_1, Q5_1}, {IQ4_NL, IQ4_NL}, {Q8_0, F16}};
    ggml_backend *const backend = open_backend();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        fake_case c = {.heads = 4,
                       .kv_heads = 2,
                       .rows = 17,
                       .keys = 70,
                       .dim = 32,
                       .k_type = types[i][0],
                       .v_type = types[i][1],
                       .sees = sees_past,
                       .at = 30};
        check_case(backend, &c, "a type of cache");
    }
    backend->free(backend);
}

/* ---- What is left to the host ---- */

static void expect_refusal(ggml_tensor *node, const char *reason) {
    ggml_device *const device = open_device();
    assert_false(device->supports_op(device, node));
    if (!has_logged(reason)) fail_msg("the log does not have \"%s\": %s", reason, fake.log);
    /* A graph does not fail for it. */
    ggml_backend *const backend = open_backend();
    const int before = fake.cpu_nodes;
    node->op = OP_OTHER;
    assert_int_equal(compute(backend, node), GGML_ABI_SUCCESS);
    assert_int_equal(fake.cpu_nodes, before + 1);
    backend->free(backend);
    free_node(node);
}

static void what_attune_does_not_read_is_refused_with_a_reason(void **state) {
    (void)state;
    const fake_case c = {.heads = 4, .kv_heads = 2, .rows = 3, .keys = 10, .dim = 32};
    ggml_tensor *node = make_node(&c);
    node->src[1]->type = OTHER_TYPE;
    expect_refusal(node, "a type that attune does not read");
    node = make_node(&c);
    node->src[3]->type = F32;
    expect_refusal(node, "the mask is not f16");
    node = make_node(&c);
    node->src[2]->nb[0] = 4;
    expect_refusal(node, "rows of K or V are not contiguous");
    node = make_node(&c);
    node->src[3]->nb[0] = 4;
    expect_refusal(node, "rows of the mask are not contiguous");
    node = make_node(&c);
    node->src[0]->nb[0] = 8;
    expect_refusal(node, "rows of q or of the result are not contiguous");
    node = make_node(&c);
    node->src[3]->ne[2] = 2;
    expect_refusal(node, "the mask differs by heads");
    node = make_node(&c);
    node->src[0]->type = F16;
    expect_refusal(node, "q or the result is not f32");
    node = make_node(&c);
    node->src[3]->ne[0] = 8;
    expect_refusal(node, "the shape of the mask does not fit");
    node = make_node(&c);
    node->src[1]->ne[2] = 3;
    expect_refusal(node, "shapes of q, K and V do not fit");
    node = make_node(&c);
    node->src[5] = node->src[0];
    ggml_device *const device = open_device();
    assert_false(device->supports_op(device, node));
    assert_true(has_logged("a source that attune does not know"));
    node->src[5] = NULL;
    free_node(node);
}

static void other_operators_are_the_hosts(void **state) {
    (void)state;
    ggml_device *const device = open_device();
    ggml_tensor node = {.op = OP_OTHER};
    assert_false(device->supports_op(device, &node));
    node.op = OP_SOFT_MAX;
    assert_false(device->supports_op(device, &node));
    assert_false(has_logged("-fa on"));
    node.src[1] = &node; /* a mask */
    assert_false(device->supports_op(device, &node));
    assert_true(has_logged("-fa on"));
    node.op = OP_VIEW;
    assert_true(device->supports_op(device, &node));
    assert_true(device->supports_buft(device, device->get_buffer_type(device)));
    assert_int_equal(device->get_type(device), GGML_ABI_ACCEL);
}

/* llama.cpp asks about one token first, and gives flash attention up if the answer is yes (-fa auto). */
static void the_first_graph_of_a_backend_is_the_hosts(void **state) {
    (void)state;
    fake_case c = {.heads = 4, .kv_heads = 2, .keys = 10, .dim = 32};
    ggml_tensor *const token = make_node(&c);
    c.rows = 8;
    ggml_tensor *const prompt = make_node(&c);
    ggml_device *const device = open_device();
    ggml_backend *backend = device->init_backend(device, NULL);
    assert_false(device->supports_op(device, token));
    assert_false(device->supports_op(device, token));
    assert_true(device->supports_op(device, prompt));
    assert_true(device->supports_op(device, token));
    backend->free(backend);
    backend = device->init_backend(device, NULL);
    assert_false(device->supports_op(device, token));
    set_threads(backend, 3);
    assert_int_equal(fake.cpu_threads, 3);
    assert_true(device->supports_op(device, token));
    backend->free(backend);
    free_node(token);
    free_node(prompt);
}

/* Which of the two computes depends on how long compiling takes. The result does not. */
static void the_host_computes_while_a_kernel_compiles(void **state) {
    (void)state;
    const fake_case c = {.heads = 4, .kv_heads = 2, .rows = 3, .keys = 33, .dim = 88};
    ggml_tensor *const node = make_node(&c);
    float expected[4 * 3 * 88];
    reference(node, expected);
    setenv("ATTUNE_DEADLINE_US", "0", 1);
    ggml_backend *const backend = open_backend();
    do { /* ends with the first call that attune computes */
        fake.cpu_nodes = 0;
        memset(node->data, 0xff, sizeof expected);
        assert_int_equal(compute(backend, node), GGML_ABI_SUCCESS);
        assert_true(worst_difference(node, expected) < 2e-5);
    } while (fake.cpu_nodes);
    setenv("ATTUNE_DEADLINE_US", "60000000", 1);
    backend->free(backend);
    free_node(node);
}

/* The child has no thread that compiles, and one of the parent's may have been at work. */
static void a_child_of_fork_compiles_for_itself(void **state) {
    (void)state;
    const fake_case begun = {.heads = 4, .kv_heads = 2, .rows = 3, .keys = 33, .dim = 104};
    ggml_tensor *const node = make_node(&begun);
    setenv("ATTUNE_DEADLINE_US", "0", 1);
    ggml_backend *const backend = open_backend();
    assert_int_equal(compute(backend, node), GGML_ABI_SUCCESS);
    const pid_t child = fork();
    if (!child) {
        alarm(60);
        do {
            fake.cpu_nodes = 0;
            compute(backend, node);
        } while (fake.cpu_nodes);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    setenv("ATTUNE_DEADLINE_US", "60000000", 1);
    backend->free(backend);
    free_node(node);
}

static bool stops(void *data) { return ++*(int *)data > 1; }

static void a_host_may_abort_between_nodes(void **state) {
    (void)state;
    const fake_case c = {.heads = 4, .kv_heads = 2, .rows = 3, .keys = 10, .dim = 32};
    int calls = 0;
    ggml_backend *const backend = open_backend();
    ggml_reg *const reg = backend->device->reg;
    void *const found = reg->get_proc_address(reg, "ggml_backend_set_abort_callback");
    ggml_set_abort_callback *set;
    memcpy(&set, &found, sizeof set);
    set(backend, stops, &calls);
    assert_true(fake.cpu_abort == stops);
    ggml_tensor *const node = make_node(&c);
    ggml_tensor view = {.op = OP_VIEW, .flags = GGML_ABI_COMPUTE}, unwanted = *node;
    unwanted.flags = 0;
    ggml_tensor *nodes[] = {&view, &unwanted, node, node};
    ggml_graph graph = {.n_nodes = 4, .nodes = nodes};
    assert_int_equal(backend->graph_compute(backend, &graph), GGML_ABI_ABORTED);
    assert_int_equal(calls, 2);
    backend->free(backend);
    free_node(node);
}

/* ---- Versions ---- */

static size_t devices_of(const char *version) {
    fake_reset();
    fake.version = version;
    ggml_reg *const reg = ggml_backend_init();
    if (!reg->get_device_count(reg)) assert_null(reg->get_device(reg, 0));
    return reg->get_device_count(reg);
}

static void a_version_that_was_not_tested_has_no_device(void **state) {
    (void)state;
    static const char *const known[] = {"0.9.11", "0.10.0", "0.15.3", "0.25.3", "0.25.9-dirty"};
    static const char *const foreign[] = {"0.9.10", "0.8.20", "0.26.0", "1.0.0", "later", ""};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_int_equal(devices_of(known[i]), 1);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        assert_int_equal(devices_of(foreign[i]), 0);
        assert_true(has_logged("attune knows 0.9.11 to 0.25"));
    }
    setenv("ATTUNE_GGML_ANY", "1", 1);
    assert_int_equal(devices_of("0.26.0"), 1);
    assert_int_equal(devices_of("0.9.10"), 0);
    unsetenv("ATTUNE_GGML_ANY");
}

/* ggml 0.9 has shorter structs. */
static void a_backend_has_the_layout_of_its_host(void **state) {
    (void)state;
    const fake_case c = {.heads = 4, .kv_heads = 2, .rows = 3, .keys = 33, .dim = 88};
    float expected[4 * 3 * 88];
    assert_int_equal(devices_of("0.9.11"), 1);
    ggml_reg *const reg = ggml_backend_init();
    ggml_device *const device = reg->get_device(reg, 0);
    ggml_backend *const backend = device->init_backend(device, NULL);
    const ggml_backend_0_9 *const old = (const ggml_backend_0_9 *)backend;
    assert_ptr_equal(old->device, device);
    assert_string_equal(old->get_name(backend), "attune");
    ggml_tensor *node = make_node(&c);
    ggml_graph graph = {.n_nodes = 1, .nodes = &node};
    reference(node, expected);
    assert_int_equal(old->graph_compute(backend, &graph), GGML_ABI_SUCCESS);
    assert_int_equal(fake.cpu_nodes, 0);
    assert_true(worst_difference(node, expected) < 2e-5);
    free_node(node);
    old->free(backend);
    assert_int_equal(fake.live_backends, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_that_is_absent_or_a_length_is_no_mask),
        cmocka_unit_test(causality_is_found_at_any_offset),
        cmocka_unit_test(windows_and_ranges_are_found),
        cmocka_unit_test(few_keys_are_lists),
        cmocka_unit_test(few_keys_with_biases_are_lists_too),
        cmocka_unit_test(rows_of_a_sequence_are_a_group),
        cmocka_unit_test(rings_are_windows_of_a_list),
        cmocka_unit_test(other_masks_are_a_bias),
        cmocka_unit_test(rows_that_see_nothing_are_0),
        cmocka_unit_test(alibi_is_recognised),
        cmocka_unit_test(scores_have_caps_and_sinks),
        cmocka_unit_test(every_type_of_cache_is_computed),
        cmocka_unit_test(what_attune_does_not_read_is_refused_with_a_reason),
        cmocka_unit_test(other_operators_are_the_hosts),
        cmocka_unit_test(the_first_graph_of_a_backend_is_the_hosts),
        cmocka_unit_test(the_host_computes_while_a_kernel_compiles),
        cmocka_unit_test(a_child_of_fork_compiles_for_itself),
        cmocka_unit_test(a_host_may_abort_between_nodes),
        cmocka_unit_test(a_backend_has_the_layout_of_its_host),
        cmocka_unit_test(a_version_that_was_not_tested_has_no_device),
    };
    setenv("ATTUNE_DEADLINE_US", "60000000", 1); /* so that attune computes each case */
    setenv("ATTUNE_CACHE_DIR", "", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
