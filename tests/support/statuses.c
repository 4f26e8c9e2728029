#include "support/statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

void assert_ok(attune_status status) {
    if (status) fail_msg("%s: %s", attune_status_name(status), attune_last_message());
}

void assert_ok_for(attune_status status, const char *what) {
    if (status) fail_msg("%s: %s: %s", what, attune_status_name(status), attune_last_message());
}

void assert_fails(attune_status status, attune_status expected, const char *part) {
    if (status != expected) fail_msg("%s: %s", attune_status_name(status), attune_last_message());
    if (!strstr(attune_last_message(), part)) fail_msg("\"%s\" is not in: %s", part, attune_last_message());
}

attune_kernel_info kernel_info_of(const attune_kernel *kernel) {
    attune_kernel_info info = {.struct_size = sizeof info};
    assert_ok(attune_kernel_get_info(kernel, &info));
    return info;
}

attune_statistics statistics_of(const attune_context *context) {
    attune_statistics statistics = {.struct_size = sizeof statistics};
    assert_ok(attune_get_statistics(context, &statistics));
    return statistics;
}

attune_kernel *kernel_of(attune_context *context, const attune_problem *problem) {
    attune_kernel *kernel = NULL;
    if (attune_compile(context, problem, NULL, &kernel)) {
        char text[1024];
        attune_problem_print(problem, text, sizeof text);
        fail_msg("%s: %s", text, attune_last_message());
    }
    return kernel;
}
