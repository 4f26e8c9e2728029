/* A file is written under a random name beside its place, then renamed without replacing another one. */
#define _GNU_SOURCE
#include "tune/new_file.h"

#include "cache/disk_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool tune_is_in_writable_directory(const char *path) {
    char directory[PATH_MAX];
    const char *const end = strrchr(path, '/');
    if (!end) return !faccessat(AT_FDCWD, ".", W_OK, AT_EACCESS);
    snprintf(directory, sizeof directory, "%.*s/", (int)(end - path), path);
    return !faccessat(AT_FDCWD, directory, W_OK, AT_EACCESS);
}

int tune_make_beside(const char *path, bool is_in_cache, char beside[PATH_MAX]) {
    char number[AT_FILE_CHARS];
    const char *const slash = strrchr(path, '/');
    const int directory = slash ? (int)(slash - path) + 1 : 0;
    if (!at_file_random_name(is_in_cache ? "tmp-" : "", number)) return -1;
    const int length = is_in_cache ? snprintf(beside, PATH_MAX, "%.*s%s", directory, path, number)
                                   : snprintf(beside, PATH_MAX, "%s.%s", path, number);
    errno = ENAMETOOLONG;
    if (length >= PATH_MAX) return -1;
    return at_io_open(at_default_io(), AT_FDCWD, beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
}

static bool is_not_offered(int reason) {
    return reason == EINVAL || reason == ENOSYS || reason == EPERM || reason == EOPNOTSUPP;
}

/* An empty file claims the name, so that no two processes can take it. */
static bool claim_and_rename(const char *beside, const char *path) {
    const int fd = at_io_open(at_default_io(), AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return false;
    close(fd);
    if (!rename(beside, path)) return true;
    const int reason = errno;
    unlink(path);
    errno = reason;
    return false;
}

/* Some file systems have no such rename, others no links, and FAT neither. */
bool tune_give_name(const char *beside, const char *path) {
    if (!renameat2(AT_FDCWD, beside, AT_FDCWD, path, RENAME_NOREPLACE)) return true;
    if (!is_not_offered(errno)) return false;
    if (!link(beside, path)) return !unlink(beside);
    return is_not_offered(errno) && claim_and_rename(beside, path);
}

bool tune_resolve_new(const char *path, char resolved[PATH_MAX]) {
    char directory[PATH_MAX];
    const char *const slash = strrchr(path, '/'), *const name = slash ? slash + 1 : path;
    const int length = slash ? (int)(name - path) : 1;
    errno = *name ? ENAMETOOLONG : EISDIR;
    if (!*name || length >= PATH_MAX) return false;
    snprintf(directory, sizeof directory, "%.*s", length, slash ? path : ".");
    if (!realpath(directory, resolved)) return false;
    const size_t end = strcmp(resolved, "/") ? strlen(resolved) : 0;
    errno = ENAMETOOLONG;
    return snprintf(resolved + end, PATH_MAX - end, "/%s", name) < (int)(PATH_MAX - end);
}
