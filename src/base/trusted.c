#include "base/trusted.h"

#include <stdio.h>
#include <unistd.h>

bool at_is_trusted(const struct stat *status, uid_t code_owner, char *why, size_t capacity) {
    const uid_t owner = status->st_uid;
    why[0] = '\0';
    if (!S_ISREG(status->st_mode))
        snprintf(why, capacity, "it is not a regular file");
    else if (owner != 0 && owner != geteuid() && owner != code_owner)
        snprintf(why, capacity, "it belongs to user %u, neither root nor this user", (unsigned)owner);
    else if (status->st_mode & S_IWOTH)
        snprintf(why, capacity, "all users may write to it");
    else if (status->st_mode & S_IWGRP && status->st_gid != owner)
        snprintf(why, capacity, "group %u may write to it", (unsigned)status->st_gid);
    return !why[0];
}
