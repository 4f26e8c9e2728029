#define _GNU_SOURCE
#include "support/temp_dir.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void temp_dir_make(char path[TEMP_DIR_CHARS]) {
    const char *base = getenv("TMPDIR");
    snprintf(path, TEMP_DIR_CHARS, "%.200s/attune-test-XXXXXX", base && *base ? base : "/tmp");
    if (mkdtemp(path)) return;
    perror(path);
    exit(1);
}

static int matches(const char *name, const char *prefix, const char *suffix) {
    const size_t n = strlen(name), m = strlen(suffix);
    return name[0] != '.' && !strncmp(name, prefix, strlen(prefix)) && n >= m && !strcmp(name + n - m, suffix);
}

/* Counts the matches; removes them if asked, keeps the path of the first if `first` is not NULL. */
static int walk(const char *path, const char *prefix, const char *suffix, int unlink_them, char *first) {
    int count = 0;
    DIR *dir = opendir(path);
    if (!dir) return 0;
    for (const struct dirent *item; (item = readdir(dir));) {
        char file[TEMP_DIR_CHARS + 256];
        if (!matches(item->d_name, prefix, suffix)) continue;
        snprintf(file, sizeof file, "%s/%s", path, item->d_name);
        if (unlink_them) unlink(file);
        if (first && !count) snprintf(first, TEMP_DIR_CHARS, "%s/%.200s", path, item->d_name);
        count++;
    }
    closedir(dir);
    return count;
}

void temp_dir_remove(const char *path) {
    walk(path, "", "", 1, NULL);
    rmdir(path);
}

static int remove_one(const char *path, const struct stat *of, int kind, struct FTW *place) {
    (void)of, (void)kind, (void)place;
    return remove(path);
}

void temp_dir_remove_all(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

void file_write(const char *path, const void *data, size_t bytes) {
    FILE *const file = fopen(path, "wb");
    if (file && fwrite(data, 1, bytes, file) == bytes && !fclose(file) && !chmod(path, 0644)) return;
    perror(path);
    exit(1);
}

int temp_dir_setup(void **state) {
    static char path[TEMP_DIR_CHARS];
    temp_dir_make(path);
    *state = path;
    return 0;
}

int temp_dir_teardown(void **state) {
    temp_dir_remove(*state);
    return 0;
}

int temp_dir_count(const char *path, const char *prefix, const char *suffix) {
    return walk(path, prefix, suffix, 0, NULL);
}

void temp_dir_first(const char *path, const char *suffix, char file[TEMP_DIR_CHARS]) {
    file[0] = '\0';
    walk(path, "", suffix, 0, file);
}
