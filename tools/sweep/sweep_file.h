/* The results of a sweep: a JSON file that is whole after every result, and that a later run continues.
 *
 *     {"schema": 2, "header": {…}, "samples": 10, "sizes": "", "cold_data": false,
 *      "cache": {"hits": …, "misses": …, "compile_ms": …}, "results": [as of `attune bench --json`]}
 *
 * The header's date and the cache are those of the run that wrote the file last. Results may be older. */
#ifndef ATTUNE_TOOLS_SWEEP_FILE_H
#define ATTUNE_TOOLS_SWEEP_FILE_H

#include "common/manifest.h"
#include "common/sizes.h"

#include <jansson.h>

/* Results are comparable only if all of these are the same. */
typedef struct sweep_settings {
    uint32_t threads;
    size_t samples;
    bool cold_data;
    call_sizes sizes;
} sweep_settings;

typedef struct sweep_file {
    const char *path; /* NULL: nothing is written */
    json_t *root;
    json_t *index; /* the same results by the text of their problems */
    char *lock_path;
    int lock; /* -1: there is none */
} sweep_file;

/* All of these print a message and return false on failure. A file of other settings, or of another machine or version,
 * is refused and left as it is, and so is one that another process has open. Opening writes, so that a place that
 * cannot be written is known at once. Close it in any case. */
bool sweep_file_open(sweep_file *file, const char *path, const sweep_settings *settings,
                     const attune_machine_info *machine);
void sweep_file_close(sweep_file *file);

const json_t *sweep_file_find(const sweep_file *file, const attune_problem *problem); /* NULL: it is not measured */
size_t sweep_file_count(const sweep_file *file, const manifest *list); /* how many of the list have a result */
bool sweep_file_add(sweep_file *file, json_t *result);                 /* takes the reference */
bool sweep_file_set_cache(sweep_file *file, size_t hits, size_t misses, double compile_ms);

/* Whether a document is that of a sweep, with results; false after a message. */
bool sweep_file_is_whole(const char *path, const json_t *root);

/* Whether two of them have the same settings and number of threads; false after a message. */
bool sweep_file_is_comparable(const char *path, const json_t *a, const char *other, const json_t *b);

/* What identifies a machine, as text: CPU, instruction set, versions. Free it. NULL when out of memory. */
char *sweep_file_machine(const json_t *header);

json_t *sweep_file_json(const sweep_file *file); /* a new reference to all of it */

#endif
