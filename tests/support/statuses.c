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
