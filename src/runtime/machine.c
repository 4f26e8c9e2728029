#include "runtime/machine.h"

#include "base/fpenv.h"
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

static void set_description(at_machine_class *machine, const at_description *description) {
    machine->description = *description;
    at_description_print(description, machine->text);
}

static void set_class(at_machine_class *machine, const char *name, const char *source, bool arm) {
    snprintf(machine->name, sizeof machine->name, "%s", name);
    machine->source = source;
    set_description(machine, at_description_of(name, arm));
}

static void set_custom(at_machine_class *machine, const at_description *description, const char *source) {
    at_description_name(description, machine->name);
    machine->source = source;
    set_description(machine, description);
}

/* The class that begins the text, up to `length`. *found is NULL if it is of the other architecture. */
static attune_status find_class(const char *what, const char *text, size_t length, bool arm, const char **found,
                                at_error *err) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), text);
    *found = at_class_find(name);
    if (!*found) return at_class_refuse(what, name, arm, err);
    if (!at_class_is_of(*found, arm)) *found = NULL;
    return ATTUNE_OK;
}

/* A class, numbers, or both. *is_other: the class is of the other architecture; the machine is then not set. */
static attune_status read_text(const char *what, const char *text, const char *source, bool arm,
                               at_machine_class *machine, bool *is_other, at_error *err) {
    const size_t first = strcspn(text, ",");
    const bool has_class = !memchr(text, '=', first);
    const char *name = at_class_generic;
    *is_other = false;
    if (has_class && find_class(what, text, first, arm, &name, err)) return err->status;
    if (!name) {
        *is_other = true;
        return ATTUNE_OK;
    }
    if (has_class && !text[first]) {
        set_class(machine, name, source, arm);
        return ATTUNE_OK;
    }
    at_description description = *at_description_of(name, arm);
    if (at_description_parse(what, has_class ? text + first + 1 : text, &description, err)) return err->status;
    set_custom(machine, &description, source);
    return ATTUNE_OK;
}

attune_status at_machine_choose(const char *option, const at_target *target, at_machine_class *machine, at_error *err) {
    const char *variable = getenv("ATTUNE_MACHINE");
    const bool arm = is_arm(target);
    bool is_other;
    if (option) {
        if (read_text("machine", option, "option", arm, machine, &is_other, err)) return err->status;
        return is_other ? at_class_refuse("machine for this ISA", option, arm, err) : ATTUNE_OK;
    }
    if (variable && *variable) {
        if (read_text("ATTUNE_MACHINE", variable, "ATTUNE_MACHINE", arm, machine, &is_other, err)) return err->status;
        if (is_other && !is_foreign(target)) return at_class_refuse("ATTUNE_MACHINE for this CPU", variable, arm, err);
        if (is_foreign(target)) set_class(machine, at_class_generic, "ATTUNE_MACHINE", arm);
        return ATTUNE_OK;
    }
    set_class(machine, is_foreign(target) ? at_class_generic : at_class_of(at_cpu_identity_here()), "cpu", arm);
    return ATTUNE_OK;
}

/* ---- What a probe has left ---- */

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
    return *last && !read_text("", last, "probe", at_cpu_identity_here()->is_arm, machine, &is_other, &ignored) &&
           !is_other;
}

void at_machine_recall(const at_disk_cache *cache, const at_target *target, at_machine_class *machine) {
    at_machine_class probed;
    if (strcmp(machine->source, "cpu") || strcmp(machine->name, at_class_generic) || is_foreign(target) ||
        cache->dir < 0)
        return;
    if (read_file(cache, &probed)) *machine = probed;
}

/* ---- Probing ---- */

/* A CPU whose repeated measurements give different classes is none of the known ones. */
static attune_status find_nearest(at_core_measures *measures, const char **name, at_error *err) {
    enum { TIMES = 3 };
    for (int i = 0; i < TIMES; i++) {
        if (at_core_measure(measures, err)) return err->status;
        const char *rounded = at_class_round(at_cpu_identity_here(), measures);
        *name = i && *name != rounded ? at_class_generic : rounded;
        if (*name == at_class_generic) break;
    }
    return ATTUNE_OK;
}

static int64_t bytes_of_cache(int name) {
    const long bytes = sysconf(name);
    return bytes > 0 ? bytes : 0;
}

/* Only the rates of a core and the sizes that the system tells: bytes a cycle depend on other processes and other
 * virtual machines, and a class must not. */
static void describe_this(at_machine_class *machine) {
    at_core_cycles cycles;
    at_core_count(&cycles);
    const at_description d =
        at_core_describe(&cycles, bytes_of_cache(_SC_LEVEL1_DCACHE_SIZE), bytes_of_cache(_SC_LEVEL2_CACHE_SIZE),
                         bytes_of_cache(_SC_LEVEL3_CACHE_SIZE));
    set_custom(machine, &d, "probe");
}

/* Of a known class its name is kept, of another CPU its description. */
static attune_status measure(at_core_measures *measures, at_machine_class *machine, const char **kept, at_error *err) {
    const char *nearest = at_class_generic;
    if (find_nearest(measures, &nearest, err)) return err->status;
    if (nearest == at_class_generic)
        describe_this(machine);
    else
        set_class(machine, nearest, "probe", at_cpu_identity_here()->is_arm);
    *kept = nearest == at_class_generic ? machine->text : nearest;
    return ATTUNE_OK;
}

static attune_status keep(at_disk_cache *cache, const char *kept, int *is_kept, at_error *err) {
    char text[FILE_BYTES];
    const int dir = at_disk_cache_dir(cache, false);
    if (dir < 0) return ATTUNE_OK;
    const int bytes = print_file(text, kept);
    const int failure = at_file_replace(cache->io, dir, FILE_NAME, 0600, text, (size_t)bytes);
    *is_kept = !failure;
    return failure ? at_fail(err, ATTUNE_IO_ERROR, "what was probed could not be kept in %s: %s", cache->path,
                             strerror(failure))
                   : ATTUNE_OK;
}

attune_status attune_probe_machine(attune_context *context, attune_machine_probe *probe) {
    AT_DEFAULT_FPENV;
    static _Thread_local at_machine_class machine; /* the caller gets its strings */
    at_error err = {0};
    at_core_measures measures;
    const char *kept = NULL;
    if (!context || !probe) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_probe_machine was given NULL");
        return at_report(&err);
    }
    if (at_check_out(probe, sizeof *probe, "attune_machine_probe", &err) || measure(&measures, &machine, &kept, &err))
        return at_report(&err);
    attune_machine_probe full = {.machine = machine.name,
                                 .fma = measures.fma,
                                 .fma_wide = measures.fma_wide,
                                 .add = measures.add,
                                 .description = machine.text};
    keep(&context->disk, kept, &full.is_kept, &err);
    at_copy_out(probe, &full, sizeof full, "attune_machine_probe", NULL);
    return at_report(&err);
}
