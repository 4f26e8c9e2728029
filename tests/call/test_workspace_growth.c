/* Memory stays linear in the length: four times as long needs at most four times as much workspace. That of decoding
 * does not grow at all beyond some length. */
#define _GNU_SOURCE
#include <attune.h>
#include "support/problems.h"
#include "support/statuses.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SHORT = 4096, LONG = 16384 };

/* Of a call with this length in place of each #. */
static size_t workspace(attune_context *context, const char *pattern, int64_t length) {
    char text[256];
    size_t at = 0, bytes = 0;
    attune_arguments arguments;
    attune_kernel *kernel;
    for (const char *from = pattern; *from && at < sizeof text - 24; from++)
        if (*from == '#')
            at += (size_t)snprintf(text + at, sizeof text - at, "%" PRId64, length);
        else
            text[at++] = *from;
    text[at] = 0;
    const attune_problem problem = problem_parsed(text);
    assert_ok_for(attune_compile(context, &problem, NULL, &kernel), text);
    assert_ok_for(attune_arguments_init(&arguments, &problem), text);
    if (problem.seq_q == ATTUNE_DYNAMIC) arguments.seq_q = length;
    if (problem.seq_kv == ATTUNE_DYNAMIC) arguments.seq_kv = length;
    assert_ok_for(attune_workspace_size(context, kernel, &arguments, &bytes), text);
    attune_kernel_release(kernel);
    return bytes;
}

static attune_context *new_context(void) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.cache_dir = "";
    options.max_workers = 2;
    assert_ok_for(attune_context_create(&options, &context), "context");
    return context;
}

static void workspace_of_long_sequences_is_constant(void **state) {
    static const char *const problems[] = {
        "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=dynamic,head_dim=128,dtype=bf16",
        "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=#,head_dim=128",
        "num_heads=8,seq_q=5,seq_kv=dynamic,head_dim=64,is_causal=1,causal_align=bottom_right",
        "num_heads=64,num_kv_heads=8,seq_q=1,seq_kv=dynamic,head_dim=64,window_left=4096,is_causal=1",
    };
    attune_context *const context = new_context();
    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const size_t some = workspace(context, problems[i], 32768), many = workspace(context, problems[i], 131072);
        if (some != many) fail_msg("%s: %zu bytes for 32768 keys, %zu for 131072", problems[i], some, many);
    }
    attune_context_destroy(context);
}

static void workspace_grows_at_most_linearly(void **state) {
    static const char *const problems[] = {
        "num_heads=2,seq_q=#,head_dim=64",
        "num_heads=2,seq_q=#,head_dim=64,is_causal=1,has_lse=1",
        "num_heads=2,seq_q=#,head_dim=64,dtype=bf16",
        "num_heads=2,seq_q=#,head_dim=64,attn_mask_dims=qk",
        "num_heads=2,seq_q=#,head_dim=64,weights_mode=softmax",
        "num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=#,head_dim=128",
        "num_heads=8,num_kv_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=64",
        "embed_dim=128,num_heads=2,seq_q=#",
        "embed_dim=128,num_heads=2,seq_q=#,dtype=bf16,is_causal=1",
    };
    attune_context *const context = new_context();
    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const size_t few = workspace(context, problems[i], SHORT), many = workspace(context, problems[i], LONG);
        if (many > few * (LONG / SHORT))
            fail_msg("%s: %zu bytes for %d, %zu for %d", problems[i], few, SHORT, many, LONG);
    }
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(workspace_grows_at_most_linearly),
                                       cmocka_unit_test(workspace_of_long_sequences_is_constant)};
    return cmocka_run_group_tests_name("workspace growth", tests, NULL, NULL);
}
