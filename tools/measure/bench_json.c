/* Fields of the problem are split out of its text with their types, so that readers need no parser. */
#include "measure/bench_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Fields ---- */

static json_t *typed(const char *value) {
    char *end = NULL;
    /* The words that problems take for flags. */
    if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) return json_integer(*value == 't');
    errno = 0;
    const long long whole = strtoll(value, &end, 10);
    if (end != value && !*end && !errno) return json_integer(whole);
    const double real = strtod(value, &end);
    /* json_real refuses infinities. */
    json_t *const number = end != value && !*end ? json_real(real) : NULL;
    return number ? number : tool_json_text(value);
}

static bool add_fields(json_t *fields, const char *text) {
    char *const copy = strdup(text), *rest = NULL;
    bool good = copy != NULL;
    for (char *item = copy ? strtok_r(copy, ",", &rest) : NULL; good && item; item = strtok_r(NULL, ",", &rest)) {
        char *const equals = strchr(item, '=');
        if (!equals) continue;
        *equals = '\0';
        good = json_object_set_new(fields, tool_trimmed(item), typed(tool_trimmed(equals + 1))) == 0;
    }
    free(copy);
    return good;
}

/* The fields of a problem by name, whole numbers and reals as such, everything else as text: those of the canonical
 * text, and those that `given` (may be NULL) names although they have their defaults, so that all rows of a grid have
 * the same fields. A new object; NULL when out of memory. */
static json_t *fields_json(const char *canonical, const char *given) {
    json_t *const fields = json_object();
    if (fields && (!given || add_fields(fields, given)) && add_fields(fields, canonical)) return fields;
    json_decref(fields);
    return NULL;
}

/* ---- A result ---- */

json_t *bench_busy_json(const bench_case *c, json_t *result) {
    static const char *const figures[] = {"spread", "gflops", "fraction_of_peak", "fraction_of_roofline"};
    if (result) json_object_set_new(result, "is_busy", json_boolean(c->is_busy));
    for (size_t i = 0; c->is_busy && i < sizeof figures / sizeof *figures; i++)
        if (json_object_get(result, figures[i])) json_object_set_new(result, figures[i], json_null());
    return result;
}

json_t *bench_result_json(const bench_case *c, const call_sizes *run_sizes, uint32_t threads) {
    char sizes[SIZES_TEXT];
    json_t *const samples = json_array();
    for (size_t k = 0; k < c->count; k++) json_array_append_new(samples, json_real(c->samples_us[k]));
    json_t *const result = json_pack(
        "{s:s, s:o, s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:o, s:f, s:f, s:s, s:f, s:I, s:I, s:f, s:s, s:f, s:f}",
        "problem", c->text, "fields", fields_json(c->text, c->given), "sizes", sizes_print(run_sizes, sizes),
        "schedule", c->schedule, "engine", tool_engine_option(c->engine), "threads", (int)threads, "median_us",
        c->median_us, "min_us", c->min_us, "spread", c->spread, "samples_us", samples, "gflops", c->gflops,
        "peak_gflops", c->peak_gflops, "peak_dtype", tool_dtype_name(c->peak_dtype), "fraction_of_peak", c->fraction,
        "footprint_bytes", (json_int_t)c->work.bytes, "workspace_bytes", (json_int_t)c->workspace_bytes,
        "bandwidth_gbs", c->bandwidth_gbs, "bound", c->is_memory_bound ? "memory" : "compute", "roofline_gflops",
        c->roofline_gflops, "fraction_of_roofline", c->fraction_of_roofline);
    if (result && c->work.all_pairs > 0) {
        json_object_set_new(result, "pairs_seen", json_real(c->work.pairs));
        json_object_set_new(result, "share_seen", json_real(c->work.pairs / c->work.all_pairs));
    }
    if (result && c->cold_compile_ms > 0) {
        json_object_set_new(result, "cold_compile_ms", json_real(c->cold_compile_ms));
        json_object_set_new(result, "warm_disk_us", json_real(c->warm_disk_us));
        json_object_set_new(result, "memory_hit_ns", json_real(c->memory_hit_ns));
    }
    return result;
}
