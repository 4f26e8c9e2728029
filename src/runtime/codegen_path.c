#define _GNU_SOURCE
#include "runtime/codegen_path.h"

#include "install_dirs.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int try_directory(const char *directory, const char *below, const char *file, char *path, size_t capacity) {
    if ((size_t)snprintf(path, capacity, "%s%s/%s", directory, below, file) < capacity && !access(path, R_OK)) return 1;
    path[0] = '\0';
    return 0;
}

/* The directory of the object that holds this function, links resolved. The linker's name of the executable is only
 * what argv[0] says, so for a static link the kernel is asked. */
static int own_directory(char directory[PATH_MAX]) {
    Dl_info info;
    struct link_map *map = NULL;
    const int known = dladdr1((void *)(size_t)at_codegen_find, &info, (void **)&map, RTLD_DL_LINKMAP);
    if (!known || !map || !map->l_name[0] || !realpath(map->l_name, directory)) {
        const ssize_t n = readlink("/proc/self/exe", directory, PATH_MAX - 1);
        if (n <= 0) return 0;
        directory[n] = '\0';
    }
    char *slash = strrchr(directory, '/');
    if (!slash) return 0;
    *slash = '\0';
    return 1;
}

void at_codegen_find(const char *env, const char *file, char *path, size_t capacity) {
    const char *named = env ? secure_getenv(env) : NULL;
    if (named && *named) {
        if ((size_t)snprintf(path, capacity, "%s", named) >= capacity) path[0] = '\0';
        return;
    }
    /* Not the directory above: a library in /tmp/app must not load what somebody has put into /tmp. */
    static const char *const below[] = {"", "/attune", "/lib/attune", "/../lib/attune", "/" ATTUNE_PLUGIN_FROM_BIN};
    char directory[PATH_MAX];
    if (own_directory(directory))
        for (size_t i = 0; i < sizeof below / sizeof *below; i++)
            if (try_directory(directory, below[i], file, path, capacity)) return;
    try_directory(ATTUNE_PLUGIN_DIR, "", file, path, capacity);
}
