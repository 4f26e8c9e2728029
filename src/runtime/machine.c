#include "runtime/machine.h"

#include "runtime/context.h"
#include "runtime/disk_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Choosing ---- */

static bool is_arm(const at_target *target) { return target->required & AT_CPU_AARCH64; }

static bool is_foreign(const at_target *target) { return is_arm(target) != at_cpu_identity_here()->is_arm; }

/* *found is NULL if the name is of the other architecture. */
static attune_status choose_named(const char *what, const char *name, const at_target *target, const char **found,
                                  at_error *err) {
    *found = at_class_find(name);
    if (!*found) return at_class_refuse(what, name, is_arm(target), err);
    if (!at_class_is_of(*found, is_arm(target))) *found = NULL;
    return ATTUNE_OK;
}

attune_status at_machine_choose(const char *option, const at_target *target, at_machine_class *machine, at_error *err) {
    const char *variable = getenv("ATTUNE_MACHINE"), *name = NULL;
    if (option) {
        if (choose_named("machine", option, target, &name, err)) return err->status;
        *machine = (at_machine_class){name, "option"};
        return name ? ATTUNE_OK : at_class_refuse("machine for this ISA", option, is_arm(target), err);
    }
    if (variable && *variable) {
        if (choose_named("ATTUNE_MACHINE", variable, target, &name, err)) return err->status;
        *machine = (at_machine_class){name ? name : at_class_generic, "ATTUNE_MACHINE"};
        return name || is_foreign(target)
                   ? ATTUNE_OK
                   : at_class_refuse("ATTUNE_MACHINE for this CPU", variable, is_arm(target), err);
    }
    *machine = (at_machine_class){is_foreign(target) ? at_class_generic : at_class_of(at_cpu_identity_here()), "cpu"};
    return ATTUNE_OK;
}

/* ---- What a probe has left ---- */

static const char FILE_NAME[] = "machine-probe";
enum { FILE_BYTES = 512 };

/* The file names the CPU, because machines may share a home directory. It also has the CPU's features: virtual machines
 * may hide some, and a probe without 512-bit vectors has not measured them. The class is the last word. */
static int print_file(char text[FILE_BYTES], const char *name) {
    return snprintf(text, FILE_BYTES, "attune machine probe 1\n%s\nfeatures 0x%x\n%s\n", at_cpu_description(),
                    at_cpu_features(), name);
}

static const char *read_file(const at_disk_cache *cache) {
    char text[FILE_BYTES], name[AT_CLASS_BYTES] = "";
    at_file file;
    const at_found found = at_file_read(cache->io, cache->dir, FILE_NAME, AT_TRUST_OWN, cache->allocator, &file);
    const size_t before = (size_t)print_file(text, "") - 1; /* without the last line's end */
    if (found == AT_FOUND && file.bytes > before + 1 && file.bytes - before - 1 < sizeof name &&
        !memcmp(file.data, text, before) && file.data[file.bytes - 1] == '\n')
        memcpy(name, file.data + before, file.bytes - before - 1);
    at_file_close(&file, cache->allocator);
    return at_class_find(name);
}

void at_machine_recall(const at_disk_cache *cache, const at_target *target, at_machine_class *machine) {
    if (strcmp(machine->source, "cpu") || strcmp(machine->name, at_class_generic) || is_foreign(target) ||
        cache->dir < 0)
        return;
    const char *name = read_file(cache);
    if (name) *machine = (at_machine_class){name, "probe"};
}

/* ---- Probing ---- */

/* A CPU whose repeated measurements give different classes is generic. */
static attune_status measure(at_core_measures *measures, const char **name, at_error *err) {
    enum { TIMES = 3 };
    for (int i = 0; i < TIMES; i++) {
        if (at_core_measure(measures, err)) return err->status;
        const char *rounded = at_class_round(at_cpu_identity_here(), measures);
        *name = i && *name != rounded ? at_class_generic : rounded;
        if (*name == at_class_generic) break;
    }
    return ATTUNE_OK;
}

attune_status attune_probe_machine(attune_context *context, attune_machine_probe *probe) {
    at_error err = {0};
    char text[FILE_BYTES];
    at_core_measures measures;
    const char *name = at_class_generic;
    if (!context || !probe) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_probe_machine was given NULL");
        return at_report(&err);
    }
    if (at_check_out(probe, sizeof *probe, "attune_machine_probe", &err) || measure(&measures, &name, &err))
        return at_report(&err);
    attune_machine_probe full = {
        .machine = name, .fma = measures.fma, .fma_wide = measures.fma_wide, .add = measures.add};
    at_disk_cache *cache = &context->disk;
    const int dir = at_disk_cache_dir(cache, false);
    if (dir >= 0) {
        const int bytes = print_file(text, name);
        const int failure = at_file_replace(cache->io, dir, FILE_NAME, 0600, text, (size_t)bytes);
        if (failure)
            at_fail(&err, ATTUNE_IO_ERROR, "what was probed could not be kept in %s: %s", cache->path,
                    strerror(failure));
        full.is_kept = !failure;
    }
    at_copy_out(probe, &full, sizeof full, "attune_machine_probe", NULL);
    return at_report(&err);
}
