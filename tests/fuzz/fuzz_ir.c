/* The loop IR's text: what parses prints to text that parses to the same text again, and the verifier judges both
 * alike. What it accepts is lowered for every target: no pass may crash on, or break, a verified kernel. */
#include "fuzz.h"

#include "ir/passes.h"
#include "ir/text.h"
#include "ir/verify.h"

static void lower_for_all(const ir_kernel *kernel) {
    for (const at_target *target = at_targets(); target->name; target++) {
        at_error err = {0};
        if (!ir_lower(kernel, target, NULL, NULL, &err)) FUZZ_REQUIRE(err.message[0] != '\0');
    }
}

static void check_round_trip(at_arena *arena, const ir_kernel *kernel) {
    at_string first, second;
    at_string_init(&first, NULL);
    at_string_init(&second, NULL);
    at_error err = {0}, verdict = {0}, again_verdict = {0};
    ir_print(kernel, &first);
    const ir_kernel *again = ir_parse(arena, first.data, first.length, &err);
    if (!again) fprintf(stderr, "%s\n%s\n", err.message, first.data);
    FUZZ_REQUIRE(again);
    ir_print(again, &second);
    FUZZ_REQUIRE(strcmp(first.data, second.data) == 0);
    const attune_status status = ir_verify(kernel, IR_SCHEDULED, NULL, &verdict);
    FUZZ_REQUIRE(ir_verify(again, IR_SCHEDULED, NULL, &again_verdict) == status);
    if (status == ATTUNE_OK)
        lower_for_all(kernel);
    else
        FUZZ_REQUIRE(verdict.message[0] != '\0');
    at_string_free(&first);
    at_string_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    at_arena arena;
    at_arena_init(&arena, NULL);
    at_error err = {0};
    const ir_kernel *kernel = ir_parse(&arena, (const char *)data, size, &err);
    if (kernel)
        check_round_trip(&arena, kernel);
    else
        FUZZ_REQUIRE(err.message[0] != '\0');
    at_arena_free(&arena);
    return 0;
}
