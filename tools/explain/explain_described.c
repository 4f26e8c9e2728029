/* attune explain of a description: its kernels, when steps use them, and what each is made of. */
#include "explain/explain.h"

#include "common/json_output.h"
#include "common/table.h"

#include <string.h>

/* When a step uses a kernel, by its word in text. */
static const char *use_of(const char *word) {
    static const char *const uses[][2] = {
        {"any", "where nothing can be compiled"},
        {"any_tokens", "steps of 8 or more tokens where nothing can be compiled"},
        {"few", "steps whose longest sequence has fewer than 8 tokens"},
        {"chunks", "steps whose longest sequence has 8 or more tokens"},
        {"channels", "contiguous channels"},
        {"state_apart", "contiguous channels, but not of the state"},
        {"apart", "other strides"},
        {"64", "up to 64 key blocks"},
        {"512", "up to 512"},
        {"4096", "up to 4096"},
        {"32768", "up to 32768"},
        {"project_", "x to queries and the row of the cache"},
        {"absorb_", "absorbed form: queries to the latent space"},
        {"values_", "absorbed form: back to the columns of values"},
        {"expand_", "unabsorbed form: rows of the cache to keys and values"},
        {"out_", "the output projection"},
    };
    if (!strcmp(word, "tokens")) return "8 or more tokens, if reproducible (linear) or contiguous (conv)";
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        const size_t length = strlen(uses[i][0]);
        if (uses[i][0][length - 1] == '_' ? !strncmp(word, uses[i][0], length) : !strcmp(word, uses[i][0]))
            return uses[i][1];
    }
    return "all steps";
}

/* The word of a kernel's text. */
static const char *word_of(const char *kernel) {
    static const char key[] = ",kernel=";
    const char *const at = strstr(kernel, key);
    return at ? at + sizeof key - 1 : "";
}

static void add_row(table *t, const char *kernel, const attune_kernel_info *info) {
    char bytes[TABLE_NUMBER_BYTES], scratch[TABLE_NUMBER_BYTES];
    const char *const word = word_of(kernel);
    table_cell(t, "%s", word);
    table_cell(t, "%s", tool_origin_place(info->origin));
    table_cell(t, "%s", table_bytes(info->code_bytes, bytes));
    table_cell(t, "%u", info->num_phases);
    table_cell(t, "%s", table_bytes(info->scratch_bytes, scratch));
    table_cell(t, "%s", use_of(word));
}

static json_t *kernel_json(const char *kernel, const attune_kernel_info *info) {
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:I}", "kernel", kernel, "isa", info->isa, "machine",
                     info->machine, "origin", tool_origin_name(info->origin), "phases", (int)info->num_phases,
                     "code_bytes", (json_int_t)info->code_bytes, "scratch_bytes", (json_int_t)info->scratch_bytes);
}

/* A kernel, compiled or from a cache. */
static bool look_at(attune_context *context, const char *kernel, attune_kernel_info *info) {
    attune_kernel *made;
    *info = (attune_kernel_info)ATTUNE_KERNEL_INFO_INIT;
    attune_status status = attune_description_compile(context, kernel, &made);
    if (!status) {
        status = attune_kernel_get_info(made, info);
        attune_kernel_release(made);
    }
    return !status || tool_library_error(NULL) == TOOL_OK;
}

int explain_described(attune_context *context, const char *text, bool json) {
    static const char *const headers[] = {"kernel", "from", "code", "phases", "scratch", "used for"};
    size_t count;
    if (attune_description_kernel(text, 0, NULL, 0, &count)) return tool_library_error(NULL);
    table *const t = json ? NULL : table_create("llrrrl", headers);
    json_t *const kernels = json ? json_array() : NULL;
    bool good = true, is_by_vm = false;
    for (size_t i = 0; good && i < count; i++) {
        char kernel[ATTUNE_DESCRIPTION_BYTES];
        attune_kernel_info info;
        if (attune_description_kernel(text, i, kernel, sizeof kernel, NULL)) good = !tool_library_error(NULL);
        good = good && look_at(context, kernel, &info);
        is_by_vm = is_by_vm || (good && info.origin == ATTUNE_FROM_VM);
        if (good && json) json_array_append_new(kernels, kernel_json(kernel, &info));
        if (good && !json) add_row(t, kernel, &info);
        if (good && !json && i == 0) printf("kernels of %s, for %s, %s\n\n", text, info.machine, info.isa);
    }
    if (!good) {
        table_discard(t);
        json_decref(kernels);
        return TOOL_FAILED;
    }
    if (json) return json_print_for(context, 0, json_pack("{s:s, s:o}", "description", text, "kernels", kernels));
    table_finish(t, stdout);
    if (is_by_vm && !strncmp(text, "op=linear", 9))
        printf("\n"
               "without a compiler, steps use a kernel of tier 0 if one fits the description, otherwise the virtual "
               "machine\n");
    printf("\nattune run measures a step of it, by --sizes or on files; attune compile shows the code of a kernel\n");
    return TOOL_OK;
}
