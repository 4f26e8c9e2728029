/* attune cache ls, verify. */
#include "cache/cache.h"
#include "common/json_output.h"
#include "common/table.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One walk over the cache files. */
typedef struct cache_walk {
    bool verify, has_several;
    uint64_t files, bytes, damaged;
    table *table;
    json_t *list;
} cache_walk;

const char *cache_s(uint64_t count) { return count == 1 ? "" : "s"; }

const char *cache_time(int64_t seconds, char text[CACHE_TIME_BYTES]) {
    struct tm local;
    const time_t when = (time_t)seconds;
    text[0] = '\0';
    if (localtime_r(&when, &local)) strftime(text, CACHE_TIME_BYTES, "%Y-%m-%d %H:%M", &local);
    return text;
}

/* Moves on by a part of a full key, which has its length in front (docs/cache.md): that many units. 0 as well if the
 * key ends before. */
static size_t skip_part(const unsigned char **at, size_t *left, size_t unit) {
    if (*left < 4) return 0;
    const size_t count = (*at)[0] | (size_t)(*at)[1] << 8 | (size_t)(*at)[2] << 16 | (size_t)(*at)[3] << 24;
    const size_t bytes = count * unit < *left - 4 ? count * unit : *left - 4;
    *at += 4 + bytes;
    *left -= 4 + bytes;
    return count;
}

/* Whether the caller gave the schedule: it is part of the key then, after the operator's name and the problem. */
static bool has_explicit_schedule(const attune_cache_file *file) {
    const unsigned char *at = file->key;
    size_t left = file->key_bytes;
    skip_part(&at, &left, 1);
    skip_part(&at, &left, 1);
    return skip_part(&at, &left, sizeof(uint32_t)) > 0;
}

static int visit(void *user, const attune_cache_file *file) {
    cache_walk *const walk = user;
    char size[TABLE_NUMBER_BYTES], used[CACHE_TIME_BYTES];
    walk->files++;
    walk->bytes += file->bytes;
    const bool is_good = file->status == ATTUNE_OK;
    if (!is_good) walk->damaged++;
    if (walk->list)
        json_array_append_new(
            walk->list, json_pack("{s:s, s:o, s:b, s:b, s:I, s:b, s:o, s:o, s:o, s:s, s:s, s:b, s:I}", "file",
                                  file->file, "directory", tool_json_text(file->directory), "base", file->is_base,
                                  "pack", file->pack != NULL, "bytes", (json_int_t)file->bytes, "ok", is_good,
                                  "message", tool_json_text(file->message), "problem", tool_json_text(file->problem),
                                  "schedule", tool_json_text(file->schedule), "isa", file->isa, "machine",
                                  file->machine, "usable", file->is_usable, "used_at", (json_int_t)file->used_at));
    if (!walk->table || (walk->verify && is_good)) return 0;
    table_cell(walk->table, "%s", file->file);
    if (walk->has_several) table_cell(walk->table, "%s", file->pack ? "pack" : file->is_base ? "base" : "cache");
    table_cell(walk->table, "%s", table_bytes(file->bytes, size));
    table_cell(walk->table, "%s", cache_time(file->used_at, used));
    table_cell(walk->table, "%s", is_good ? file->isa : "-");
    table_cell(walk->table, "%s", is_good ? file->machine : "-");
    /* As in a manifest. Without its schedule the line would be that of other kernels of the problem. */
    const bool is_explicit = is_good && has_explicit_schedule(file);
    table_cell(walk->table, "%s%s%s", is_good ? file->problem : file->message, is_explicit ? " | " : "",
               is_explicit ? file->schedule : "");
    return 0;
}

static int by_file(const void *left, const void *right) {
    json_t *const *const a = left, *const *const b = right;
    const int order =
        strcmp(json_string_value(json_object_get(*a, "file")), json_string_value(json_object_get(*b, "file")));
    return order ? order : json_is_true(json_object_get(*a, "base")) - json_is_true(json_object_get(*b, "base"));
}

/* Sorts, because a directory has no fixed order. A new reference; NULL when out of memory. */
static json_t *sorted(const json_t *list) {
    const size_t count = json_array_size(list);
    json_t **const items = calloc(count ? count : 1, sizeof *items);
    json_t *const result = items ? json_array() : NULL;
    for (size_t i = 0; items && i < count; i++) items[i] = json_array_get(list, i);
    if (items) qsort(items, count, sizeof *items, by_file);
    for (size_t i = 0; result && i < count; i++) json_array_append(result, items[i]);
    free(items);
    return result;
}

static int print(const cache_walk *walk, const attune_machine_info *machine) {
    char size[TABLE_NUMBER_BYTES];
    if (walk->list)
        return json_print(
            machine, 0,
            json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o}", "cache_dir",
                      tool_json_text(machine->cache_dir), "cache_base", tool_json_text(machine->cache_base),
                      "cache_refusal", tool_json_text(machine->cache_refusal), "cache_base_refusal",
                      tool_json_text(machine->cache_base_refusal), "cache_pack", tool_json_text(machine->cache_pack),
                      "cache_pack_refusal", tool_json_text(machine->cache_pack_refusal), "kernels",
                      (json_int_t)walk->files, "bytes", (json_int_t)walk->bytes, "damaged", (json_int_t)walk->damaged,
                      "list", sorted(walk->list)));
    /* Without a row the headers alone would look like a mistake. */
    table_sort(walk->table);
    if (walk->verify ? walk->damaged : walk->files)
        table_finish(walk->table, stdout);
    else
        table_discard(walk->table);
    printf("%llu kernel%s, %s, %llu damaged in ", (unsigned long long)walk->files, cache_s(walk->files),
           table_bytes(walk->bytes, size), (unsigned long long)walk->damaged);
    const char *const places[][2] = {
        {"", machine->cache_dir}, {"the base ", machine->cache_base}, {"the pack ", machine->cache_pack}};
    bool is_first = true;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!*places[i][1]) continue;
        printf("%s%s%s", is_first ? "" : " and ", places[i][0], places[i][1]);
        is_first = false;
    }
    printf("\n");
    return TOOL_OK;
}

static int list(const cache_options *o, attune_context *context, const attune_machine_info *machine, bool verify) {
    static const char *const headers[] = {"file", "size", "last used", "isa", "machine", "problem"};
    static const char *const base_headers[] = {"file", "in", "size", "last used", "isa", "machine", "problem"};
    cache_walk walk = {.verify = verify, .has_several = *machine->cache_base || *machine->cache_pack};
    if (o->json)
        walk.list = json_array();
    else
        walk.table = walk.has_several ? table_create("llrllll", base_headers) : table_create("lrllll", headers);
    if (attune_cache_visit(context, visit, &walk) != ATTUNE_OK) {
        json_decref(walk.list);
        table_discard(walk.table);
        return tool_library_error(NULL);
    }
    const int code = print(&walk, machine);
    json_decref(walk.list);
    return walk.verify && walk.damaged ? TOOL_FAILED : code;
}

int cache_list(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    return list(o, context, machine, false);
}

int cache_verify(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    return list(o, context, machine, true);
}
