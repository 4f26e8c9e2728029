#include "runtime/tuned.h"

#include <stdlib.h>
#include <string.h>

static void init_file(at_tuning_file *file, const char *directory) {
    static const char name[] = "/tuning.db";
    file->is_absent = false;
    /* SQLite is told to follow no links, and means those on the way to the directory as well. */
    if (!*directory || !realpath(directory, file->path) || strlen(file->path) + sizeof name > sizeof file->path)
        file->path[0] = '\0';
    else
        strcat(file->path, name);
}

void at_tuning_init(at_tuning *t, const char *cache_dir, const char *cache_base, const attune_allocator *allocator) {
    t->allocator = allocator;
    pthread_mutex_init(&t->mutex, NULL);
    init_file(&t->own, cache_dir);
    init_file(&t->base, cache_base);
}

void at_tuning_free(at_tuning *t) { pthread_mutex_destroy(&t->mutex); }
