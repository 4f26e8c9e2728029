/* The whole file is written to a new one and renamed after each result, so an interruption loses one result at most. */
#define _GNU_SOURCE
#include "sweep/sweep_file.h"

#include "common/input.h"
#include "common/json_output.h"
#include "common/tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Members of the file and of its header that must be the same, or results cannot be compared. */
static const char *const settings_keys[] = {"schema", "samples", "sizes", "cold_data"};
static const char *const header_keys[] = {"cpu", "cpu_family", "cpu_model", "cpu_stepping", "machine",
                                          "isa", "llvm",       "version",   "generator",    "threads"};

static json_t *new_root(const sweep_settings *s, const attune_machine_info *machine) {
    char sizes[SIZES_TEXT];
    return json_document(machine, s->threads,
                         json_pack("{s:I, s:s, s:b, s:{s:i, s:i, s:f}, s:[]}", "samples", (json_int_t)s->samples,
                                   "sizes", sizes_print(&s->sizes, sizes), "cold_data", (int)s->cold_data, "cache",
                                   "hits", 0, "misses", 0, "compile_ms", 0.0, "results"));
}

static bool is_result(const json_t *r) {
    const json_t *const header = json_object_get(r, "header");
    return json_is_string(json_object_get(r, "problem")) && json_is_object(json_object_get(r, "fields")) &&
           json_is_string(json_object_get(r, "bound")) && json_number_value(json_object_get(r, "median_us")) > 0 &&
           json_is_number(json_object_get(r, "gflops")) && json_is_number(json_object_get(r, "fraction_of_peak")) &&
           json_is_number(json_object_get(r, "spread")) && json_number_value(json_object_get(r, "spread")) >= 0 &&
           json_is_number(json_object_get(r, "fraction_of_roofline")) && (!header || json_is_object(header));
}

/* Whether a result may have this member: it has none, or that of its file. */
static bool agrees(const json_t *of_result, const json_t *of_file) {
    return !of_result || (of_file && json_equal(of_result, of_file));
}

/* Checks the results of a file. Returns what is wrong, or NULL. */
static const char *damage_of_results(const json_t *root) {
    const json_t *const results = json_object_get(root, "results"), *result;
    const json_t *const threads = json_object_get(json_object_get(root, "header"), "threads");
    size_t i;
    if (!json_is_array(results)) return "it has no list of results";
    json_array_foreach(results, i, result) {
        const json_t *const header = json_object_get(result, "header");
        if (!is_result(result)) return "a result lacks members, or has some of another kind";
        if (!agrees(json_object_get(result, "sizes"), json_object_get(root, "sizes")))
            return "a result has other sizes than the file";
        if (header && (!json_object_get(header, "threads") || !agrees(json_object_get(header, "threads"), threads)))
            return "a result has another number of threads than the file";
    }
    return NULL;
}

/* The first of these members that differs; NULL: none. */
static const char *different(const json_t *a, const json_t *b, const char *const *keys, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const json_t *const one = json_object_get(a, keys[i]);
        if (!one || !json_equal(one, json_object_get(b, keys[i]))) return keys[i];
    }
    return NULL;
}

/* Checks the members other than the results. Returns what is wrong, or NULL. */
static const char *damage_of_settings(const json_t *root) {
    const json_t *const cache = json_object_get(root, "cache");
    if (!json_is_integer(json_object_get(root, "schema"))) return "it has no schema";
    if (!json_is_integer(json_object_get(json_object_get(root, "header"), "threads")))
        return "it has no header with a number of threads";
    if (!json_is_integer(json_object_get(root, "samples"))) return "it has no number of samples";
    if (!json_is_string(json_object_get(root, "sizes"))) return "it has no sizes";
    if (!json_is_boolean(json_object_get(root, "cold_data"))) return "it does not say whether data were cold";
    if (!json_is_number(json_object_get(cache, "hits")) || !json_is_number(json_object_get(cache, "misses")) ||
        !json_is_number(json_object_get(cache, "compile_ms")))
        return "it has no numbers of the cache";
    return NULL;
}

bool sweep_file_is_whole(const char *path, const json_t *root) {
    const char *const settings = damage_of_settings(root), *const why = settings ? settings : damage_of_results(root);
    if (why) tool_error("%s is no sweep, or its results are damaged: %s", path, why);
    return !why;
}

bool sweep_file_is_comparable(const char *path, const json_t *a, const char *other, const json_t *b) {
    static const char *const threads[] = {"threads"};
    const char *key = different(a, b, settings_keys, sizeof settings_keys / sizeof *settings_keys);
    const json_t *one = json_object_get(a, key ? key : ""), *two = json_object_get(b, key ? key : "");
    if (!key) {
        const json_t *const header = json_object_get(a, "header"), *const second = json_object_get(b, "header");
        key = different(header, second, threads, 1);
        if (!key) return true;
        one = json_object_get(header, key), two = json_object_get(second, key);
    }
    char *const one_text = json_dumps(one, JSON_ENCODE_ANY), *const two_text = json_dumps(two, JSON_ENCODE_ANY);
    tool_error("%s and %s cannot be merged: they were measured with %s=%.80s and %s=%.80s", path, other, key,
               one_text ? one_text : "(unknown)", key, two_text ? two_text : "(unknown)");
    free(one_text);
    free(two_text);
    return false;
}

char *sweep_file_machine(const json_t *header) {
    json_t *const machine = json_object();
    bool good = machine != NULL;
    for (size_t i = 0; good && i < sizeof header_keys / sizeof *header_keys; i++) {
        json_t *const value = json_object_get(header, header_keys[i]);
        good = !value || json_object_set(machine, header_keys[i], value) == 0;
    }
    char *const text = good ? json_dumps(machine, JSON_COMPACT) : NULL;
    json_decref(machine);
    return text;
}

/* Whether these members of an older object are those of a new one; false after a message. */
static bool has_same(const char *path, const json_t *old, const json_t *new, const char *const *keys, size_t count) {
    const char *const key = different(old, new, keys, count);
    if (key) {
        const json_t *const was = json_object_get(old, key), *is = json_object_get(new, key);
        char *const was_text = was ? json_dumps(was, JSON_ENCODE_ANY) : NULL;
        char *const is_text = json_dumps(is, JSON_ENCODE_ANY);
        tool_error("%s cannot be continued: it was measured with %s=%.80s, and this sweep has %s=%.80s; name another "
                   "file, or remove it",
                   path, key, was_text ? was_text : "(unknown)", key, is_text ? is_text : "?");
        free(was_text);
        free(is_text);
        return false;
    }
    return true;
}

/* The results of an older file, if it can be continued. NULL after a message. */
static json_t *results_of(const char *path, const json_t *old, const json_t *root) {
    if (json_is_array(json_object_get(old, "results")) && !json_object_get(old, "cold_data")) {
        tool_error("%s is the output of attune bench, not of a sweep; name another file, or remove it", path);
        return NULL;
    }
    if (!has_same(path, old, root, settings_keys, sizeof settings_keys / sizeof *settings_keys) ||
        !has_same(path, json_object_get(old, "header"), json_object_get(root, "header"), header_keys,
                  sizeof header_keys / sizeof *header_keys))
        return NULL;
    const char *const why = damage_of_results(old);
    if (why) tool_error("%s cannot be continued: its results are damaged: %s", path, why);
    return why ? NULL : json_object_get(old, "results");
}

/* Takes the reference. An older result of the problem gives way in its place. */
static bool append(sweep_file *file, json_t *result) {
    const char *const problem = json_string_value(json_object_get(result, "problem"));
    const json_t *const old = json_object_get(file->index, problem);
    json_t *const results = json_object_get(file->root, "results");
    size_t at = 0;
    while (old && json_array_get(results, at) != old) at++;
    const bool is_indexed = json_object_set(file->index, problem, result) == 0;
    if ((old ? json_array_set_new(results, at, result) : json_array_append_new(results, result)) == 0 && is_indexed)
        return true;
    tool_error("out of memory");
    return false;
}

/* ---- The file ---- */

/* The results of a text, which may be empty. */
static bool take_in_text(sweep_file *file, const char *text, size_t bytes) {
    json_error_t why;
    if (!bytes) return true;
    json_t *const old = json_loadb(text, bytes, 0, &why);
    const json_t *const results = old ? results_of(file->path, old, file->root) : NULL;
    if (!old) tool_error("%s is no sweep that could be continued: line %d: %s", file->path, why.line, why.text);
    bool good = results != NULL;
    for (size_t i = 0; good && i < json_array_size(results); i++) {
        json_t *const result = json_array_get(results, i);
        const char *const problem = json_string_value(json_object_get(result, "problem"));
        good = json_object_get(file->index, problem) || append(file, json_incref(result));
    }
    json_decref(old);
    return good;
}

static bool is_regular(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

/* Takes in the results of an earlier sweep. */
static bool take_in(sweep_file *file) {
    enum { MOST_BYTES = 256 << 20 };
    char message[ATTUNE_MESSAGE_BYTES];
    size_t bytes;
    if (!is_regular(file->path)) return true;
    char *const text = tool_read_text(file->path, "results of sweeps", MOST_BYTES, &bytes, message);
    if (!text) tool_error("%s", message);
    const bool good = text && take_in_text(file, text, bytes);
    free(text);
    return good;
}

/* The process that has a lock file may remove it right before this one gets the lock. */
static bool is_still_there(int fd, const char *path) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

/* Keeps other sweeps from the file while this one writes to it. The file itself cannot be locked, because each result
 * replaces it. */
static bool lock(sweep_file *file) {
    char *const target = realpath(file->path, NULL);
    const bool is_named = asprintf(&file->lock_path, "%s.lock", target ? target : file->path) >= 0;
    free(target);
    if (!is_named) {
        file->lock_path = NULL;
        tool_error("out of memory");
        return false;
    }
    for (;;) {
        file->lock = open(file->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file->lock < 0) {
            tool_error("%s: cannot write: %s", file->lock_path, strerror(errno));
            return false;
        }
        if (flock(file->lock, LOCK_EX | LOCK_NB) != 0) break;
        if (is_still_there(file->lock, file->lock_path)) return true;
        close(file->lock);
    }
    if (errno == EWOULDBLOCK)
        tool_error("another sweep writes to %s now", file->path);
    else
        tool_error("%s cannot be locked: %s", file->lock_path, strerror(errno));
    close(file->lock);
    file->lock = -1;
    return false;
}

static bool write_file(sweep_file *file) {
    char message[ATTUNE_MESSAGE_BYTES];
    if (!file->path) return true;
    char *const text = json_file_text(file->root);
    const bool good = text && tool_write_file(file->path, text, strlen(text), "\n", 1, message);
    if (!good) tool_error("%s", text ? message : "out of memory");
    free(text);
    return good;
}

bool sweep_file_open(sweep_file *file, const char *path, const sweep_settings *settings,
                     const attune_machine_info *machine) {
    *file = (sweep_file){.path = path, .root = new_root(settings, machine), .index = json_object(), .lock = -1};
    if (!file->root || !file->index) {
        tool_error("out of memory");
        return false;
    }
    /* A device has no results, and no lock file beside it. */
    const bool is_device = path && access(path, F_OK) == 0 && !is_regular(path);
    return !path || ((is_device || lock(file)) && take_in(file) && write_file(file));
}

void sweep_file_close(sweep_file *file) {
    if (file->lock >= 0) {
        unlink(file->lock_path);
        close(file->lock);
    }
    free(file->lock_path);
    json_decref(file->index);
    json_decref(file->root);
}

const json_t *sweep_file_find(const sweep_file *file, const attune_problem *problem) {
    char *const name = problem_text(problem);
    const json_t *const result = name ? json_object_get(file->index, name) : NULL;
    free(name);
    return result;
}

bool sweep_file_add(sweep_file *file, json_t *result) { return append(file, result) && write_file(file); }

bool sweep_file_set_cache(sweep_file *file, size_t hits, size_t misses, double compile_ms) {
    json_t *const cache =
        json_pack("{s:I, s:I, s:f}", "hits", (json_int_t)hits, "misses", (json_int_t)misses, "compile_ms", compile_ms);
    if (!cache || json_object_set_new(file->root, "cache", cache)) {
        tool_error("out of memory");
        return false;
    }
    return write_file(file);
}

size_t sweep_file_count(const sweep_file *file, const manifest *list) {
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) count += sweep_file_find(file, &list->kernels[i].problem) != NULL;
    return count;
}

json_t *sweep_file_json(const sweep_file *file) { return json_incref(file->root); }
