/* attune cache: lists, checks, explains, cleans and copies the disk cache. */
#include "cache/cache.h"
#include "common/json_output.h"
#include "common/table.h"
#include "nearest.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int clear(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    uint64_t removed = 0;
    if (attune_cache_clear(context, &removed) != ATTUNE_OK) return tool_library_error(NULL);
    if (o->json)
        return json_print(
            machine, 0,
            json_pack("{s:o, s:I}", "cache_dir", tool_json_text(machine->cache_dir), "removed", (json_int_t)removed));
    printf("%llu kernel%s removed from %s\n", (unsigned long long)removed, cache_s(removed), machine->cache_dir);
    return TOOL_OK;
}

static int collect(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    attune_cache_collected c = {.struct_size = sizeof c};
    char removed[TABLE_NUMBER_BYTES], orphans[TABLE_NUMBER_BYTES], left[TABLE_NUMBER_BYTES];
    if (attune_cache_gc(context, o->max_bytes, &c) != ATTUNE_OK) return tool_library_error(NULL);
    if (o->json)
        return json_print(machine, 0,
                          json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "cache_dir",
                                    tool_json_text(machine->cache_dir), "removed", (json_int_t)c.removed,
                                    "removed_bytes", (json_int_t)c.removed_bytes, "orphans", (json_int_t)c.orphans,
                                    "orphan_bytes", (json_int_t)c.orphan_bytes, "kernels", (json_int_t)c.left, "bytes",
                                    (json_int_t)c.left_bytes));
    printf("%llu kernel%s (%s) and %llu orphan%s (%s) removed, %llu kernel%s (%s) left in %s\n",
           (unsigned long long)c.removed, cache_s(c.removed), table_bytes(c.removed_bytes, removed),
           (unsigned long long)c.orphans, cache_s(c.orphans), table_bytes(c.orphan_bytes, orphans),
           (unsigned long long)c.left, cache_s(c.left), table_bytes(c.left_bytes, left), machine->cache_dir);
    return TOOL_OK;
}

/* ---- Arguments ---- */

typedef struct cache_action {
    const char *name, *argument; /* NULL: takes none; in brackets: need not be there */
    bool reads_base;             /* is useful without a directory to write to */
    int (*run)(const cache_options *o, attune_context *context, const attune_machine_info *machine);
} cache_action;

static const cache_action actions[] = {
    {"ls", NULL, true, cache_list},        {"verify", NULL, true, cache_verify},
    {"why", "PROBLEM", true, cache_why},   {"audit", NULL, true, cache_audit},
    {"gc", NULL, false, collect},          {"clear", NULL, false, clear},
    {"export", "DIR", true, cache_export}, {"import", "DIR", false, cache_import},
    {"add", "PACK|URL", false, cache_add}, {"pack", "[MANIFEST]", true, cache_pack},
    {"seal", "PACK", true, cache_seal},    {"index", "PACK", true, cache_index},
};
static const char action_names[] = "ls, verify, why, audit, gc, clear, export, import, add, pack, seal and index";

static const struct argp_option options[] = {
    {"schedule", TOOL_KEY_SCHEDULE, "K=V,...", 0, "why: change the chosen schedule", 0},
    {"set", TOOL_KEY_SET, "NAME=NUMBER", TOOL_REPEATS, "why: the number for a `param` line of a file of loop IR", 0},
    {"sample", TOOL_KEY_SAMPLE, "N", 0, "audit: compile at most N kernels again (default 16)", 0},
    {"seed", TOOL_KEY_SEED, "S", 0, "audit: the seed that chooses them (default: the time)", 0},
    {"max-bytes", TOOL_KEY_MAX_BYTES, "N", 0,
     "gc: the cap: bytes, or a number followed by K, M or G (default: that of the cache, 1G)", 0},
    {"output", 'o', "FILE", 0, "pack: the file to write; beside it FILE.index, which minisign signs", 0},
    {"pack", TOOL_KEY_PACK, "FILE", 0, "ls, verify, audit: look at this signed pack, and at nothing else", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static const cache_action *find_action(const char *name) {
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (strcmp(actions[i].name, name) == 0) return &actions[i];
    return NULL;
}

/* 1000, 64K, 100M, 2G: powers of 1024. */
static uint64_t parse_bytes(struct argp_state *state, const char *text) {
    static const char units[] = "KMG";
    char *end = NULL;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    const char *const unit = *end ? strchr(units, *end) : NULL;
    const int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (!isdigit((unsigned char)*text) || errno || (*end && (!unit || end[1])) || value > (uint64_t)INT64_MAX >> shift)
        argp_error(state, "--max-bytes must be a number of bytes, or a number followed by K, M or G, not '%s'", text);
    return (uint64_t)value << shift;
}

static void refuse_action(struct argp_state *state, const char *name) {
    at_nearest nearest = at_nearest_to(name, strlen(name));
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) at_nearest_try(&nearest, actions[i].name);
    if (nearest.word)
        argp_error(state, "one of %s is needed, not '%s'; did you mean %s?", action_names, name, nearest.word);
    else
        argp_error(state, "one of %s is needed, not '%s'", action_names, name);
}

static void take_argument(cache_options *o, struct argp_state *state, const char *argument) {
    if (!o->action) {
        if (!find_action(argument)) refuse_action(state, argument);
        o->action = argument;
    } else if (find_action(o->action)->argument && !o->argument) {
        o->argument = argument;
    } else if (o->argument) {
        argp_error(state, "%s takes one %s, but '%s' follows '%s'", o->action, find_action(o->action)->argument,
                   argument, o->argument);
    } else {
        argp_error(state, "%s takes no argument, but '%s' follows it", o->action, argument);
    }
}

static void check_options(const cache_options *o, struct argp_state *state) {
    if (!o->action) argp_error(state, "one of %s is needed", action_names);
    const cache_action *const action = find_action(o->action);
    if (action->argument && *action->argument != '[' && !o->argument)
        argp_error(state, "%s needs a %s", action->name, action->argument);
    if (o->schedule && action->run != cache_why) argp_error(state, "--schedule is for why, not for %s", action->name);
    if (o->numbers.count && action->run != cache_why) argp_error(state, "--set is for why, not for %s", action->name);
    if (!o->output != (action->run != cache_pack))
        argp_error(state, o->output ? "--output is for pack, not for %s" : "%s needs --output=FILE", action->name);
    if (o->pack && action->run != cache_list && action->run != cache_verify && action->run != cache_audit)
        argp_error(state, "--pack is for ls, verify and audit, not for %s", action->name);
    if (o->pack && !*o->pack) argp_error(state, "--pack needs a FILE");
    if (o->max_bytes != UINT64_MAX && action->run != collect)
        argp_error(state, "--max-bytes is for gc, not for %s", action->name);
    if ((o->has_seed || o->sample) && action->run != cache_audit)
        argp_error(state, "--%s is for audit, not for %s", o->has_seed ? "seed" : "sample", action->name);
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    cache_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case 'o': o->output = argument; return 0;
    case TOOL_KEY_PACK: o->pack = argument; return 0;
    case TOOL_KEY_SCHEDULE: o->schedule = argument; return 0;
    case TOOL_KEY_SET: bindings_add(state, &o->numbers, argument); return 0;
    case TOOL_KEY_MAX_BYTES: o->max_bytes = parse_bytes(state, argument); return 0;
    case TOOL_KEY_SAMPLE: o->sample = tool_parse_integer(state, "sample", argument, 1, 1000000); return 0;
    case TOOL_KEY_SEED:
        o->seed = tool_parse_integer(state, "seed", argument, 0, INT64_MAX);
        o->has_seed = true;
        return 0;
    case ARGP_KEY_ARG: take_argument(o, state, argument); return 0;
    case ARGP_KEY_END: check_options(o, state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* These look at a file alone. */
static bool needs_none(const cache_action *action) { return action->run == cache_seal || action->run == cache_index; }

int cmd_cache(int argc, char **argv) {
    enum { DEFAULT_SAMPLE = 16 };
    static const struct argp argp = {
        options,
        parse,
        "ls|verify|audit|gc|clear\nwhy PROBLEM|FILE\nexport|import DIR\nadd PACK|URL\npack -o PACK [MANIFEST]\n"
        "seal|index PACK",
        "Manages the kernels in the disk cache.\v"
        "  ls       list them\n"
        "  verify   read every one and name the damaged\n"
        "  audit    compile a sample again and compare the code\n"
        "  gc       remove the least recently used above the cap, and files that crashed writers left\n"
        "  clear    remove all\n"
        "  why      say why the kernel of a problem is not found\n"
        "  export   copy all valid files into a directory\n"
        "  import   copy those of a directory that can be used here\n"
        "  add      the same from a signed pack, or from its URL\n"
        "  pack     write the kernels of a MANIFEST, or all, into one file\n"
        "  seal     put the signature PACK.index.minisig into a pack\n"
        "  index    write PACK.index and its signature, to verify with minisign -V\n"
        "\n"
        "Exit status 1 if a file is damaged (verify) or differs (audit).\n"
        "\n"
        "ATTUNE_CACHE_BASE names a second directory, which is read after the first and never changed. "
        "ATTUNE_CACHE_PACK names a signed pack, which is read after both, and ATTUNE_CACHE_KEYS the directory of the "
        "public keys that are trusted (/etc/attune/keys).",
        tool_common_children,
        NULL,
        NULL};
    cache_options o = {.max_bytes = UINT64_MAX};
    tool_parse(&argp, argc, argv, &o);
    if (!o.sample) o.sample = DEFAULT_SAMPLE;
    const cache_action *const action = find_action(o.action);
    /* A kernel that comes from a pack is in no directory, and would be missing in the new pack. */
    o.common.cache_pack = action->run == cache_pack ? "" : o.pack;
    attune_context *const context = tool_open_context(&o.common, 1, o.pack ? "" : NULL);
    if (!context) return TOOL_FAILED;
    attune_machine_info machine = {.struct_size = sizeof machine};
    int code = TOOL_FAILED;
    if (attune_get_machine_info(context, &machine) != ATTUNE_OK)
        tool_library_error(NULL);
    else if (o.pack && !*machine.cache_pack)
        code = TOOL_FAILED; /* the log said why */
    else if (!o.pack && !needs_none(action) && !*machine.cache_dir &&
             !(action->reads_base && (*machine.cache_base || *machine.cache_pack)))
        tool_error("the disk cache is off");
    else
        code = action->run(&o, context, &machine);
    attune_context_destroy(context);
    return code;
}
