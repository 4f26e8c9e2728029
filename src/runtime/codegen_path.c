#define _GNU_SOURCE
#include "runtime/codegen_path.h"

#include "base/trusted.h"
#include "install_dirs.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Where this code lies ---- */

typedef struct own_place {
    bool is_known;
    char directory[PATH_MAX]; /* "": the root directory */
    uid_t owner;              /* of the library, or root if that is not sure */
} own_place;

/* The dynamic linker's name of the executable is only argv[0], so for a static link the kernel is asked. A relative
 * name may mean another file by now, so it tells nothing about the owner. */
static void find_own_place(own_place *place) {
    Dl_info info;
    struct link_map *map = NULL;
    struct stat status;
    const int known = dladdr1((void *)(size_t)at_codegen_find, &info, (void **)&map, RTLD_DL_LINKMAP);
    bool is_sure = known && map && map->l_name[0] == '/';
    place->owner = 0;
    if (!known || !map || !map->l_name[0] || !realpath(map->l_name, place->directory)) {
        const ssize_t n = readlink("/proc/self/exe", place->directory, sizeof place->directory - 1);
        place->directory[n > 0 ? n : 0] = '\0';
        is_sure = true;
    }
    if (is_sure && place->directory[0] && !stat(place->directory, &status)) place->owner = status.st_uid;
    char *slash = strrchr(place->directory, '/');
    place->is_known = slash != NULL;
    if (slash) *slash = '\0';
}

/* ---- Searching ---- */

static bool try_directory(const char *directory, const char *below, const char *name, uid_t library_owner,
                          at_codegen_file *file) {
    char why[96];
    struct stat status;
    const int length = snprintf(file->path, sizeof file->path, "%s%s/%s", directory, below, name);
    if (length > 0 && (size_t)length < sizeof file->path && !stat(file->path, &status)) {
        if (at_is_trusted(&status, library_owner, why, sizeof why)) return true;
        snprintf(file->refused, sizeof file->refused, "%.200s is not used: %s", file->path, why);
    }
    file->path[0] = '\0';
    return false;
}

/* A worker runs in another directory. */
static void take_named(const char *named, at_codegen_file *file) {
    if (realpath(named, file->path)) return;
    if ((size_t)snprintf(file->path, sizeof file->path, "%s", named) >= sizeof file->path) file->path[0] = '\0';
}

void at_codegen_find(const char *env, const char *name, at_codegen_file *file) {
    const char *named = env ? secure_getenv(env) : NULL;
    own_place place;
    file->path[0] = file->refused[0] = '\0';
    if (named && *named) {
        take_named(named, file);
        return;
    }
    find_own_place(&place);
    if (!getauxval(AT_SECURE) && place.is_known &&
        (try_directory(place.directory, "", name, place.owner, file) ||
         try_directory(place.directory, "/attune", name, place.owner, file)))
        return;
    try_directory(ATTUNE_PLUGIN_DIR, "", name, place.owner, file);
}
