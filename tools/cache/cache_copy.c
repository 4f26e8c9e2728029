/* attune cache export, import. */
#include "cache/cache.h"
#include "common/json_output.h"
#include "common/table.h"

int cache_print_copied(const cache_options *o, const attune_cache_copied *c, const char *from, const char *to,
                       const attune_machine_info *machine, bool is_import) {
    char size[TABLE_NUMBER_BYTES];
    if (o->json)
        return json_print(machine, 0,
                          json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "from", tool_json_text(from), "to",
                                    tool_json_text(to), "new", (json_int_t)c->added, "bytes",
                                    (json_int_t)c->added_bytes, "known", (json_int_t)c->known, "damaged",
                                    (json_int_t)c->damaged, "foreign", (json_int_t)c->foreign, "other_class",
                                    (json_int_t)c->other_class));
    printf("%s to %s: %llu new kernel%s (%s), %llu known, %llu damaged (left out), %llu of other CPUs or versions%s",
           from, to, (unsigned long long)c->added, cache_s(c->added), table_bytes(c->added_bytes, size),
           (unsigned long long)c->known, (unsigned long long)c->damaged, (unsigned long long)c->foreign,
           is_import ? " (left out)" : "");
    if (c->other_class)
        printf(", %llu for other tuning classes than %s", (unsigned long long)c->other_class, machine->machine);
    printf("\n");
    return TOOL_OK;
}

int cache_export(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    attune_cache_copied copied = {.struct_size = sizeof copied};
    if (attune_cache_export(context, o->argument, &copied) != ATTUNE_OK) return tool_library_error(NULL);
    return cache_print_copied(o, &copied, *machine->cache_dir ? machine->cache_dir : machine->cache_base, o->argument,
                              machine, false);
}

int cache_import(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    attune_cache_copied copied = {.struct_size = sizeof copied};
    if (attune_cache_import(context, o->argument, &copied) != ATTUNE_OK) return tool_library_error(NULL);
    return cache_print_copied(o, &copied, o->argument, machine->cache_dir, machine, true);
}
