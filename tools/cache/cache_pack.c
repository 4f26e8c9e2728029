/* attune cache pack, seal, index. */
#define _GNU_SOURCE
#include "cache/cache.h"
#include "cache/warming.h"
#include "common/interruption.h"
#include "common/json_output.h"
#include "common/table.h"
#include "common/tensors.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- pack ---- */

typedef struct key_list {
    char (*keys)[33];
    const char **names;
    size_t count;
} key_list;

static void free_keys(key_list *list) {
    free(list->keys);
    free(list->names);
}

/* The names of a manifest's kernels, which are in memory after warming. */
static bool list_keys(attune_context *context, const manifest *named, key_list *list) {
    list->keys = calloc(named->count, sizeof *list->keys);
    list->names = calloc(named->count, sizeof *list->names);
    for (size_t i = 0; list->keys && list->names && i < named->count; i++) {
        const manifest_kernel *const wanted = &named->kernels[i];
        attune_kernel *kernel = NULL;
        attune_kernel_info info = {.struct_size = sizeof info};
        if (manifest_compile(context, wanted, &kernel) || attune_kernel_get_info(kernel, &info)) {
            attune_kernel_release(kernel);
            return tool_library_error(wanted->text), false;
        }
        memcpy(list->keys[list->count], info.key, sizeof info.key);
        list->names[list->count] = list->keys[list->count];
        list->count++;
        attune_kernel_release(kernel);
    }
    if (list->count == named->count) return true;
    tool_error("out of memory");
    return false;
}

static uint32_t cpus(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : (uint32_t)CPU_COUNT(&allowed);
}

/* Compiles what is not in the cache yet. */
static bool warm_manifest(attune_context *context, const char *path, key_list *list) {
    manifest kernels = {0};
    warming w;
    bool good = manifest_add_argument(&kernels, path) && warming_run(&w, context, &kernels, cpus(), 0);
    if (good && w.count[WARM_LEFT])
        tool_error("interrupted: there is no pack");
    else if (good && w.count[WARM_FAILED])
        tool_error("%s: %zu kernels could not be compiled: there is no pack", path, w.count[WARM_FAILED]);
    else if (good && w.write_failures)
        tool_error("%s: not all that was compiled could be written to the cache: there is no pack", path);
    good = good && !w.count[WARM_LEFT] && !w.count[WARM_FAILED] && !w.write_failures;
    good = good && list_keys(context, &kernels, list);
    manifest_free(&kernels);
    return good;
}

static bool write_beside(const char *pack, const char *suffix, const void *data, size_t bytes) {
    char path[PATH_MAX], message[ATTUNE_MESSAGE_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s%s", pack, suffix) >= sizeof path)
        tool_error("%s%s: the path is too long", pack, suffix);
    else if (tool_write_file(path, "", 0, data, bytes, message))
        return true;
    else
        tool_error("%s", message);
    return false;
}

/* Writes PACK.index, which minisign signs, and if there is one the signature beside it. */
static bool write_index(attune_context *context, const char *pack, bool *is_signed) {
    void *index;
    char *signature;
    size_t bytes;
    if (attune_cache_pack_parts(context, pack, &index, &bytes, &signature)) return tool_library_error(NULL), false;
    *is_signed = *signature;
    const bool good = write_beside(pack, ".index", index, bytes) &&
                      (!*signature || write_beside(pack, ".index.minisig", signature, strlen(signature)));
    attune_free(context, index);
    attune_free(context, signature);
    return good;
}

int cache_pack(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    attune_cache_copied c = {.struct_size = sizeof c};
    key_list list = {0};
    char size[TABLE_NUMBER_BYTES];
    bool is_signed;
    int code = TOOL_FAILED;
    interruption_catch(); /* a pack that is being written becomes whole, or leaves nothing */
    if (o->argument && !warm_manifest(context, o->argument, &list))
        code = TOOL_FAILED;
    else if (attune_cache_pack(context, o->output, list.names, list.count, &c))
        code = tool_library_error(NULL);
    else if (write_index(context, o->output, &is_signed))
        code = TOOL_OK;
    free_keys(&list);
    if (code) return code;
    if (o->json)
        return json_print(machine, 0,
                          json_pack("{s:o, s:I, s:I, s:I, s:I}", "pack", tool_json_text(o->output), "kernels",
                                    (json_int_t)c.added, "bytes", (json_int_t)c.added_bytes, "damaged",
                                    (json_int_t)c.damaged, "foreign", (json_int_t)c.foreign));
    printf("%s: %llu kernel%s (%s), %llu damaged and %llu of other versions left out\n", o->output,
           (unsigned long long)c.added, cache_s(c.added), table_bytes(c.added_bytes, size),
           (unsigned long long)c.damaged, (unsigned long long)c.foreign);
    printf("sign it: minisign -Sm %s.index, then attune cache seal %s\n", o->output, o->output);
    return TOOL_OK;
}

/* ---- seal, index ---- */

int cache_seal(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    char signature[PATH_MAX];
    if ((size_t)snprintf(signature, sizeof signature, "%s.index.minisig", o->argument) >= sizeof signature) {
        tool_error("%s: the path is too long", o->argument);
        return TOOL_FAILED;
    }
    if (attune_cache_seal(context, o->argument, signature)) return tool_library_error(NULL);
    if (o->json)
        return json_print(machine, 0, json_pack("{s:o, s:b}", "pack", tool_json_text(o->argument), "signed", 1));
    printf("%s is signed\n", o->argument);
    return TOOL_OK;
}

int cache_index(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    bool is_signed;
    if (!write_index(context, o->argument, &is_signed)) return TOOL_FAILED;
    if (o->json)
        return json_print(machine, 0,
                          json_pack("{s:o, s:b}", "pack", tool_json_text(o->argument), "signed", is_signed));
    if (is_signed)
        printf("%s.index and %s.index.minisig\n", o->argument, o->argument);
    else
        printf("%s.index; %s is not signed\n", o->argument, o->argument);
    return TOOL_OK;
}
