#include "support/engine/tier0.h"

#include "support/problems.h"
#include "support/statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__aarch64__)
const char *const tier0_isas[] = {"aarch64"};
#else
const char *const tier0_isas[] = {"avx512_bf16", "avx512", "avx2", "x86-64"};
#endif

int tier0_setup(void **state) {
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/libattune-tier0.so", getenv("BUILD") ? getenv("BUILD") : "build");
    return setenv("ATTUNE_TIER0", path, 1);
}

bool tier0_runs_here(const char *isa) {
    const attune_context_options options = {.struct_size = sizeof options, .cache_dir = "", .isa = isa};
    attune_context *context;
    if (attune_context_create(&options, &context)) return false;
    attune_context_destroy(context);
    return true;
}

int tier0_hits, vm_hits;
char last_hit[512];

void tier0_note(void *user, const attune_event *event) {
    (void)user;
    if (event->kind != ATTUNE_EVENT_TIER0_HIT) return;
    (*(strstr(event->message, "the virtual machine") ? &vm_hits : &tier0_hits))++;
    snprintf(last_hit, sizeof last_hit, "%s", event->message);
}

void tier0_forget(void) {
    tier0_hits = vm_hits = 0;
    last_hit[0] = '\0';
}

attune_context *tier0_context(const char *isa) {
    const attune_context_options options = {.struct_size = sizeof options,
                                            .cache_dir = "",
                                            .isa = isa,
                                            .max_workers = 2,
                                            .compile_mode = ATTUNE_COMPILE_NEVER, /* no try is repeated later */
                                            .event = tier0_note};
    attune_context *context;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    tier0_forget();
    return context;
}

void tier0_assert_phases_agree(const sample *from) {
    attune_context *const context = tier0_context(NULL);
    sample_call whole, parts;
    attune_call *call;
    sample_call_open(&whole, from, ON_THE_HEAP);
    sample_call_open(&parts, from, ON_THE_HEAP);
    attune_kernel *const kernel = kernel_of(context, &whole.problem);
    assert_int_equal(kernel_info_of(kernel).origin, ATTUNE_FROM_TIER0);
    assert_int_equal(attune_run(context, kernel, &whole.arguments), ATTUNE_OK);
    assert_int_equal(attune_call_begin(context, kernel, &parts.arguments, 1, &call), ATTUNE_OK);
    for (uint32_t p = 0; p < attune_call_num_phases(call); p++)
        assert_int_equal(attune_call_execute(call, p, 0, attune_call_num_tasks(call, p), 0), ATTUNE_OK);
    assert_int_equal(attune_call_end(call), ATTUNE_OK);
    assert_true(sample_calls_agree(&whole, &parts));
    sample_call_close(&whole);
    sample_call_close(&parts);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

void tier0_assert_none(const char *text) {
    attune_context *const context = tier0_context(NULL);
    const attune_problem problem = problem_parsed(text);
    attune_kernel *const kernel = kernel_of(context, &problem);
    if (tier0_hits) fail_msg("%s: %s", text, last_hit);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}
