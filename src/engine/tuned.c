/* The files are tuning.db in the cache directory and in the base directory, by the paths that the cache has
 * resolved. */
#include "engine/tuned.h"

#include <stdlib.h>
#include <string.h>

/* SQLite's option against links also refuses links in the directory's path. The cache has resolved these; this checks
 * that they have not changed since. */
static void init_file(at_tuning_file *file, const char *directory, const struct stat *opened) {
    static const char name[] = "/tuning.db";
    struct stat status;
    file->is_absent = false;
    if (!*directory || !realpath(directory, file->path) || stat(file->path, &status) ||
        !at_io_is_same(&status, opened) || strlen(file->path) + sizeof name > sizeof file->path)
        file->path[0] = '\0';
    else
        strcat(file->path, name);
}

void at_tuning_init(at_tuning *t, const at_disk_cache *cache, const attune_allocator *allocator) {
    t->allocator = allocator;
    pthread_mutex_init(&t->mutex, NULL);
    init_file(&t->own, cache->path, &cache->opened[0]);
    init_file(&t->base, cache->base_path, &cache->opened[1]);
}

void at_tuning_free(at_tuning *t) { pthread_mutex_destroy(&t->mutex); }
