/* The environment names the file; else it lies beside this library, in attune/ below it, or where it was installed. A
 * file that another user could exchange is refused. */
#define _GNU_SOURCE
#include "compiler/codegen_path.h"

#include "base/trusted.h"

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

/* Where an installed library looks last; what is used in the build directory has no such place. */
#ifndef ATTUNE_PLUGIN_DIR
#define ATTUNE_PLUGIN_DIR ""
#endif

/* ---- The path of this library or executable ---- */

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

/* Says why a file that was found cannot be trusted. */
static bool is_refused(const at_codegen_file *file, char *refused, size_t capacity) {
    char why[128] = "";
    if (!file->must_be_trusted || at_is_trusted(file->path, file->library_owner, why, sizeof why)) return false;
    snprintf(refused, capacity, "%.200s is not used: %s", file->path, why);
    return true;
}

static bool try_directory(const char *directory, const char *below, const char *name, uid_t library_owner,
                          at_codegen_file *file) {
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s%s/%s", directory, below, name);
    if (length > 0 && (size_t)length < sizeof path && realpath(path, file->path)) {
        file->must_be_trusted = true;
        file->library_owner = library_owner;
        if (!is_refused(file, file->refused, sizeof file->refused)) return true;
    }
    file->path[0] = '\0';
    return false;
}

/* A worker runs in another directory, so the path becomes absolute. */
void at_codegen_name(const char *path, at_codegen_file *file) {
    *file = (at_codegen_file){0};
    if (realpath(path, file->path)) return;
    if ((size_t)snprintf(file->path, sizeof file->path, "%s", path) >= sizeof file->path) file->path[0] = '\0';
}

void at_codegen_find(const char *env, const char *name, at_codegen_file *file) {
    const char *named = env ? secure_getenv(env) : NULL;
    own_place place;
    if (named && *named) {
        at_codegen_name(named, file);
        return;
    }
    *file = (at_codegen_file){0};
    find_own_place(&place);
    if (!getauxval(AT_SECURE) && place.is_known &&
        (try_directory(place.directory, "", name, place.owner, file) ||
         try_directory(place.directory, "/attune", name, place.owner, file)))
        return;
    if (*ATTUNE_PLUGIN_DIR) try_directory(ATTUNE_PLUGIN_DIR, "", name, place.owner, file);
}

attune_status at_codegen_check(const at_codegen_file *file, at_error *err) {
    char refused[sizeof file->refused];
    if (file->path[0] && is_refused(file, refused, sizeof refused))
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "%s", refused);
    return ATTUNE_OK;
}
