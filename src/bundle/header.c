/* The C header of a bundle, for C99 and C++11. */
#include "bundle/bundle.h"

#include "base/plain_text.h"

#include <stdio.h>
#include <string.h>

/* Prevents the text of a problem from ending the comment that contains it. */
static void put_comment(at_string *out, const char *text) {
    for (; *text; text++)
        if (text[0] == '*' && text[1] == '/')
            at_string_puts(out, "* ");
        else
            at_string_append(out, text, 1);
}

static void put_upper(at_string *out, const char *text) {
    for (; *text; text++) {
        const char letter = at_upper(*text);
        at_string_append(out, &letter, 1);
    }
}

/* Nothing in a header depends on targets: one serves the libraries of several architectures. */
static void put_opening(const at_bundle_plan *plan, at_string *out) {
    at_string_printf(
        out,
        "/* %s: attention kernels, compiled ahead of time by attune %s.\n"
        " *\n"
        " * A call needs a struct of arguments, which %s_..._ARGS initialises, and a workspace of as many bytes as\n"
        " * ..._workspace says. Strides are in elements; zeros mean contiguous. Functions return 0, or one of the\n"
        " * numbers below; ..._check says what is wrong. Nothing here allocates, locks, or starts a thread, and any\n"
        " * number of threads may call at once, each with a workspace of its own.\n"
        " * ..._target says for which instruction set the code in use is. */\n",
        plan->name, ATTUNE_VERSION_STRING, plan->name);
    /* The guard has the name as it is: headers of "net" and "Net" in one file are an error, and not one header. */
    at_string_printf(out,
                     "#ifndef ATTUNE_BUNDLE_%s_H\n#define ATTUNE_BUNDLE_%s_H\n\n"
                     "#include <stddef.h>\n#include <stdint.h>\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n",
                     plan->name, plan->name);
}

static void put_common(const at_bundle_plan *plan, at_string *out) {
    at_string_printf(out, "/* What functions return. */\nenum %s_status {\n", plan->name);
    static const struct {
        const char *name;
        int value;
        const char *comment;
    } values[] = {
        {"OK", ATTUNE_OK, "done"},
        {"INVALID_ARGUMENT", ATTUNE_INVALID_ARGUMENT, "a pointer, size or stride that the call cannot take"},
        {"INVALID_PROBLEM", ATTUNE_INVALID_PROBLEM, "sizes or strides beyond all limits"},
        {"UNSUPPORTED", ATTUNE_UNSUPPORTED, "the bundle has no code for this CPU"},
        {"WORKSPACE_TOO_SMALL", ATTUNE_WORKSPACE_TOO_SMALL, "or NULL, where one is needed"},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        at_string_puts(out, "    ");
        put_upper(out, plan->name);
        at_string_printf(out, "_%s = %d%s /* %s */\n", values[i].name, values[i].value,
                         i + 1 < sizeof values / sizeof *values ? "," : "", values[i].comment);
    }
    at_string_printf(out,
                     "};\n\n"
                     "/* Makes all kernels use the code for this target, such as \"avx2\", or (NULL) the best for this "
                     "CPU, as without\n"
                     " * a call. Nothing changes if the CPU cannot run it, or there is none. */\n"
                     "int %s_use(const char *target);\n\n"
                     "/* For attune_context_add_bundle of a program that has libattune, too. */\n"
                     "extern const struct at_bundle %s_bundle;\n",
                     plan->name, plan->name);
}

/* ---- A kernel ---- */

static void put_members(const at_bundle_plan *plan, const at_bundle_part *part, at_string *out) {
    at_bundle_member members[AT_BUNDLE_MOST_MEMBERS];
    const size_t count = at_bundle_members(part, members);
    at_string_printf(out, "typedef struct %s_%s_args {\n", plan->name, part->name);
    for (size_t i = 0; i < count; i++) {
        const at_bundle_member *m = &members[i];
        at_string_printf(out, "    %s;", m->declaration);
        if (*m->shape || m->comment) at_string_puts(out, " /*");
        if (m->renamed) at_string_printf(out, " the tensor %s,", m->renamed);
        if (m->comment) at_string_printf(out, " %s", m->comment);
        if (*m->shape) at_string_printf(out, " %s", m->shape);
        at_string_puts(out, *m->shape || m->comment ? " */\n" : "\n");
    }
    at_string_printf(out, "} %s_%s_args;\n\n#define ", plan->name, part->name);
    put_upper(out, plan->name);
    at_string_puts(out, "_");
    put_upper(out, part->name);
    at_string_puts(out, "_ARGS \\\n    { ");
    for (size_t i = 0; i < count; i++) at_string_printf(out, "%s%s", i ? ", " : "", members[i].initial);
    at_string_puts(out, " }\n\n");
}

static void put_functions(const at_bundle_plan *plan, const at_bundle_part *part, at_string *out) {
    char k[2 * AT_BUNDLE_NAME_BYTES + 2];
    snprintf(k, sizeof k, "%s_%s", plan->name, part->name);
    at_string_printf(out,
                     "/* The whole call, on this thread. */\n"
                     "int %s(const %s_args *args);\n\n"
                     "/* What the call would return, and a sentence that says why; it computes nothing. */\n"
                     "int %s_check(const %s_args *args, char *message, size_t message_bytes);\n\n"
                     "/* Bytes of workspace for a call by so many workers: 1 for %s. Pointers are not read. */\n"
                     "int %s_workspace(const %s_args *args, uint32_t workers, size_t *bytes);\n\n"
                     "/* The target in use; NULL: there is none for this CPU. */\n"
                     "const char *%s_target(void);\n\n",
                     k, k, k, k, k, k, k, k);
    at_string_printf(
        out,
        "/* The call by threads of the caller. After %s_begin, each phase has tasks, which any threads execute in\n"
        " * any order and at the same time. A phase begins when all tasks of the one before have ended. Each thread\n"
        " * has a worker number of its own below `workers`. *call stays where it is until then. */\n"
        "typedef struct %s_call { uint64_t words[%d]; } %s_call;\n"
        "int %s_begin(const %s_args *args, uint32_t workers, %s_call *call);\n"
        "uint32_t %s_phases(const %s_call *call);\n"
        "int64_t %s_tasks(const %s_call *call, uint32_t phase);\n"
        "int %s_execute(const %s_call *call, uint32_t phase, int64_t begin, int64_t end, uint32_t worker);\n",
        k, k, AT_BUNDLE_CALL_BYTES / 8, k, k, k, k, k, k, k, k, k, k);
}

static void put_kernel(const at_bundle_plan *plan, const at_bundle_part *part, at_string *out) {
    char problem[MHA_PROBLEM_TEXT];
    attune_problem_print(&part->signature.problem, problem, sizeof problem);
    at_string_printf(out, "\n/* ---- %s ----\n * ", part->name);
    put_comment(out, problem);
    at_string_puts(out, " */\n\n");
    put_members(plan, part, out);
    put_functions(plan, part, out);
}

attune_status at_bundle_header(const at_bundle_plan *plan, at_string *out, at_error *err) {
    put_opening(plan, out);
    put_common(plan, out);
    for (size_t k = 0; k < plan->num_parts; k++) put_kernel(plan, &plan->parts[k], out);
    at_string_puts(out, "\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
    return out->failed ? at_fail_memory(err, out->capacity) : ATTUNE_OK;
}
