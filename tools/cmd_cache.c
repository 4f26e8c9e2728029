/* attune cache: what lies in the disk cache. */
#include "table.h"
#include "tool.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

typedef struct cache_options {
    tool_common common;
    const char *action;
    bool json;
} cache_options;

/* One walk over the entries. */
typedef struct cache_walk {
    bool verify;
    uint64_t entries, bytes, damaged;
    table *table;
    json_t *list;
} cache_walk;

static const struct argp_option options[] = {
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    cache_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (o->action) argp_error(state, "one action only, but '%s' follows '%s'", argument, o->action);
        if (strcmp(argument, "ls") && strcmp(argument, "verify") && strcmp(argument, "clear"))
            argp_error(state, "one of ls, verify and clear is needed, not '%s'", argument);
        o->action = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->action) argp_error(state, "one of ls, verify and clear is needed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int visit(void *user, const attune_cache_entry *entry) {
    cache_walk *const walk = user;
    char size[TABLE_NUMBER_BYTES], used[32] = "";
    struct tm local;
    const time_t when = (time_t)entry->used_at;
    if (localtime_r(&when, &local)) strftime(used, sizeof used, "%Y-%m-%d %H:%M", &local);
    walk->entries++;
    walk->bytes += entry->bytes;
    const bool is_good = entry->status == ATTUNE_OK;
    if (!is_good) walk->damaged++;
    if (walk->list)
        json_array_append_new(walk->list,
                              json_pack("{s:s, s:I, s:b, s:s, s:s, s:s, s:s, s:I}", "file", entry->file, "bytes",
                                        (json_int_t)entry->bytes, "ok", is_good, "message", entry->message, "problem",
                                        entry->problem, "schedule", entry->schedule, "isa", entry->isa, "used_at",
                                        (json_int_t)entry->used_at));
    if (!walk->table || (walk->verify && is_good)) return 0;
    table_cell(walk->table, "%s", entry->file);
    table_cell(walk->table, "%s", table_bytes(entry->bytes, size));
    table_cell(walk->table, "%s", used);
    table_cell(walk->table, "%s", is_good ? entry->isa : "-");
    table_cell(walk->table, "%s", is_good ? entry->problem : entry->message);
    return 0;
}

static int list(const cache_options *o, attune_context *context, const char *directory) {
    static const char *const headers[] = {"entry", "size", "last used", "isa", "problem"};
    char size[TABLE_NUMBER_BYTES];
    cache_walk walk = {.verify = strcmp(o->action, "verify") == 0};
    if (o->json)
        walk.list = json_array();
    else
        walk.table = table_create("lrlll", headers);
    if (attune_cache_visit(context, visit, &walk) != ATTUNE_OK) {
        json_decref(walk.list);
        table_discard(walk.table);
        return tool_library_error(NULL);
    }
    int code = TOOL_OK;
    if (o->json) {
        code = tool_print_json(json_pack("{s:i, s:s, s:I, s:I, s:I, s:o}", "schema", 1, "cache_dir", directory,
                                         "entries", (json_int_t)walk.entries, "bytes", (json_int_t)walk.bytes,
                                         "damaged", (json_int_t)walk.damaged, "list", walk.list));
    } else {
        /* Without a row the headers alone would look like a mistake. */
        if (walk.verify ? walk.damaged : walk.entries)
            table_finish(walk.table, stdout);
        else
            table_discard(walk.table);
        printf("%llu entr%s, %s, %llu damaged in %s\n", (unsigned long long)walk.entries,
               walk.entries == 1 ? "y" : "ies", table_bytes(walk.bytes, size), (unsigned long long)walk.damaged,
               directory);
    }
    return walk.verify && walk.damaged ? TOOL_FAILED : code;
}

static int clear(const cache_options *o, attune_context *context, const char *directory) {
    uint64_t removed = 0;
    if (attune_cache_clear(context, &removed) != ATTUNE_OK) return tool_library_error(NULL);
    if (o->json)
        return tool_print_json(
            json_pack("{s:i, s:s, s:I}", "schema", 1, "cache_dir", directory, "removed", (json_int_t)removed));
    printf("%llu entr%s removed from %s\n", (unsigned long long)removed, removed == 1 ? "y" : "ies", directory);
    return TOOL_OK;
}

int cmd_cache(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "ls|verify|clear",
        "Lists the kernels in the disk cache, reads every one of them and names the damaged (exit status 1 if there "
        "are any), or removes them all.",
        tool_common_children,
        NULL,
        NULL};
    cache_options o = {0};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    attune_context *const context = tool_open_context(&o.common, 1, NULL);
    if (!context) return TOOL_FAILED;
    attune_machine_info machine = {.struct_size = sizeof machine};
    int code = TOOL_FAILED;
    if (attune_get_machine_info(context, &machine) != ATTUNE_OK)
        tool_library_error(NULL);
    else if (!*machine.cache_dir)
        tool_error("the disk cache is off");
    else if (strcmp(o.action, "clear") == 0)
        code = clear(&o, context, machine.cache_dir);
    else
        code = list(&o, context, machine.cache_dir);
    attune_context_destroy(context);
    return code;
}
