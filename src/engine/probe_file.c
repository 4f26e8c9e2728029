/* A probe's result is a small text file: name and features of the CPU, then its class or description. */
#include "engine/probe_file.h"

#include "cache/disk_files.h"

#include <stdio.h>
#include <string.h>

static const char FILE_NAME[] = "machine-probe";
enum { FILE_BYTES = 1024 };

/* The file names the CPU, because machines may share a home directory. It also has the CPU's features: virtual machines
 * may hide some, and a probe without 512-bit vectors has not measured them. The last line is the class, or a whole
 * description, as in ATTUNE_MACHINE. */
static int print_file(char text[FILE_BYTES], const char *name) {
    return snprintf(text, FILE_BYTES, "attune machine probe 1\n%s\nfeatures 0x%x\n%s\n", at_cpu_description(),
                    at_cpu_features(), name);
}

/* false: there is none, or it is damaged, or another CPU's. */
static bool read_file(const at_disk_cache *cache, at_machine_class *machine) {
    char text[FILE_BYTES], last[FILE_BYTES] = "";
    at_file file;
    at_error ignored = {0};
    bool is_other = true;
    const at_found found = at_file_read(cache->io, cache->dir, FILE_NAME, AT_TRUST_OWN, cache->allocator, &file);
    const size_t before = (size_t)print_file(text, "") - 1; /* without the last line's end */
    const bool fits = found == AT_FOUND && file.bytes > before + 1 && file.bytes - before - 1 < sizeof last;
    if (fits && !memcmp(file.data, text, before) && file.data[file.bytes - 1] == '\n')
        memcpy(last, file.data + before, file.bytes - before - 1);
    at_file_close(&file, cache->allocator);
    return *last && !at_machine_read("", last, "probe", at_cpu_identity_here()->is_arm, machine, &is_other, &ignored) &&
           !is_other;
}

void at_probe_recall(const at_disk_cache *cache, const at_target *target, at_machine_class *machine) {
    at_machine_class probed;
    if (strcmp(machine->source, "cpu") || strcmp(machine->name, at_class_generic) || at_machine_is_foreign(target) ||
        cache->dir < 0)
        return;
    if (read_file(cache, &probed)) *machine = probed;
}

attune_status at_probe_keep(at_disk_cache *cache, const char *kept, int *is_kept, at_error *err) {
    char text[FILE_BYTES];
    const int dir = at_disk_cache_dir(cache, false);
    if (dir < 0) return ATTUNE_OK;
    const int bytes = print_file(text, kept);
    const int failure = at_file_replace(cache->io, dir, FILE_NAME, 0600, text, (size_t)bytes);
    *is_kept = !failure;
    return failure ? at_fail(err, ATTUNE_IO_ERROR, "the result of the probe could not be stored in %s: %s", cache->path,
                             strerror(failure))
                   : ATTUNE_OK;
}
