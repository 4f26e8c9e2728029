/* The public functions on descriptions as text. */
#include "base/fpenv.h"
#include "described/described.h"

#include <string.h>

/* ATTUNE_OK and parsed->of NULL: the text is none of a described operator. */
static attune_status parse(const char *function, const char *text, at_described_text *parsed, at_error *err) {
    parsed->of = text ? at_desc_table_of(text) : NULL;
    parsed->count = 0;
    if (!text) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s was given no text", function);
    return parsed->of ? at_described_parse(parsed->of, text, parsed, err) : ATTUNE_OK;
}

attune_status attune_description_kernel(const char *text, size_t number, char *kernel, size_t capacity, size_t *count) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    at_described_text parsed;
    char whole[AT_DESCRIBED_TEXT];
    if (count) *count = 0;
    if (parse("attune_description_kernel", text, &parsed, &err)) return at_report(&err);
    if (count) *count = parsed.count;
    if (!kernel) return ATTUNE_OK;
    if (number >= parsed.count) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "number is %zu; the text has %u kernels", number, parsed.count);
        return at_report(&err);
    }
    at_described_print(parsed.of, &parsed.desc, parsed.kernels[number], whole);
    const size_t bytes = strlen(whole) + 1;
    if (bytes > capacity)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "the text of the kernel has %zu bytes; there is room for %zu", bytes,
                capacity);
    else
        memcpy(kernel, whole, bytes);
    return at_report(&err);
}

/* The one kernel of a text. `whole` becomes its complete text. */
static attune_status settle(const char *function, attune_context *context, const char *text,
                            char whole[AT_DESCRIBED_TEXT], at_operation *operation, at_error *err) {
    at_described_text parsed;
    attune_operator *op;
    if (parse(function, text, &parsed, err)) return err->status;
    if (!parsed.of)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "'%.200s' is no description of one of attune's operators", text);
    if (parsed.count > 1)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "'%.200s' has %u kernels; name one, such as kernel=%s", text,
                       parsed.count, parsed.of->kernels[parsed.kernels[0]]);
    if (at_described_operator(at_described_op_of(text), context, &op, err)) return err->status;
    at_described_print(parsed.of, &parsed.desc, parsed.kernels[0], whole);
    *operation = at_own_operation(&op->own, whole);
    return ATTUNE_OK;
}

attune_status attune_description_compile(attune_context *context, const char *text, attune_kernel **kernel) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    char whole[AT_DESCRIBED_TEXT];
    at_operation operation;
    if (!context || !kernel) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_description_compile was given NULL");
        return at_report(&err);
    }
    *kernel = NULL;
    if (!settle("attune_description_compile", context, text, whole, &operation, &err))
        at_kernel_get(context, operation, NULL, kernel, &err);
    return at_report(&err);
}

attune_status attune_description_emit(attune_context *context, const char *text, attune_stage stage, void **data,
                                      size_t *bytes) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    char whole[AT_DESCRIBED_TEXT];
    at_operation operation;
    at_arena arena;
    at_built built;
    if (!context || !data || !bytes) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_description_emit was given NULL");
        return at_report(&err);
    }
    *data = NULL;
    *bytes = 0;
    if (settle("attune_description_emit", context, text, whole, &operation, &err)) return at_report(&err);
    at_arena_init(&arena, &context->allocator);
    if (!at_build_as_cached(context, &arena, operation, NULL, &built, &err))
        at_emit_stage(context, built.scheduled, built.lowered, stage, data, bytes, &err);
    at_arena_free(&arena);
    return at_report(&err);
}
