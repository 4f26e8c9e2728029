/* A file is trusted if nobody but root, this user or the owner of the code can exchange it: neither the file nor its
 * directory. */
#include "base/trusted.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A user's private group has the user's number; below 1000 are groups of the system, which have members. */
static bool is_private_group(gid_t group, uid_t owner) { return group == 0 || (group == owner && owner >= 1000); }

/* Fills in `why` unless users who are not trusted can exchange it. */
static bool is_safe(const struct stat *status, uid_t code_owner, const char *subject, char *why, size_t capacity) {
    const uid_t owner = status->st_uid;
    why[0] = '\0';
    if (owner != 0 && owner != geteuid() && owner != code_owner)
        snprintf(why, capacity, "%s belongs to user %u, neither root nor this user", subject, (unsigned)owner);
    else if (status->st_mode & S_IWOTH)
        snprintf(why, capacity, "all users may write to %s", subject);
    else if (status->st_mode & S_IWGRP && !is_private_group(status->st_gid, owner))
        snprintf(why, capacity, "group %u may write to %s", (unsigned)status->st_gid, subject);
    return !why[0];
}

bool at_is_trusted(const char *path, uid_t code_owner, char *why, size_t capacity) {
    struct stat status;
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    char *const slash = strrchr(directory, '/');
    if (slash) slash[1] = '\0';
    if (!slash)
        snprintf(why, capacity, "its path is not absolute");
    else if (lstat(path, &status))
        snprintf(why, capacity, "%s", strerror(errno));
    else if (!S_ISREG(status.st_mode))
        snprintf(why, capacity, "it is not a regular file");
    else if (!is_safe(&status, code_owner, "it", why, capacity))
        return false;
    else if (stat(directory, &status))
        snprintf(why, capacity, "its directory: %s", strerror(errno));
    else
        return is_safe(&status, code_owner, "its directory", why, capacity);
    return false;
}
