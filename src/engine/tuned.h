/* Tuned schedules for a kernel that is about to be compiled: where the databases are, and the function that looks one
 * up. */
#ifndef ATTUNE_ENGINE_TUNED_H
#define ATTUNE_ENGINE_TUNED_H

#include "base/memory.h"
#include "cache/disk_cache.h"
#include "operator/operator.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>

typedef struct at_tuning_file {
    char path[PATH_MAX]; /* "" where there is none: the directory is off */
    bool is_absent;      /* there was no file, or it could not be used: misses do not ask again */
} at_tuning_file;

typedef struct at_tuning {
    const attune_allocator *allocator;
    pthread_mutex_t mutex; /* held while a cache miss opens the databases; guards is_absent */
    at_tuning_file own, base;
} at_tuning;

/* Opens nothing yet. The files lie in the directories of the disk cache, which was opened a moment ago. */
void at_tuning_init(at_tuning *tuning, const at_disk_cache *cache, const attune_allocator *allocator);
void at_tuning_free(at_tuning *tuning);

/* at_tuning_find (tune/tuning.h) or NULL. A pointer, as src/tune is a higher layer.
 *
 * The best schedule that was measured for this problem on this machine, with as many threads or else the nearest
 * number, else that of a problem which differs little, if the model expects it to suit this one. If there is none,
 * *schedule is left alone and the result is false. A database that cannot be used is logged once, and counts as
 * missing. */
typedef bool at_find_tuned_fn(attune_context *context, at_operation operation, mha_schedule *schedule);

#endif
