/* The caller's option decides, else ATTUNE_MACHINE, else CPUID. A probe is made on request alone, and picks the class
 * whose measured rates are nearest. */
#include "machine/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Choosing ---- */

static bool is_arm(const at_target *target) { return target->required & AT_CPU_AARCH64; }

bool at_machine_is_foreign(const at_target *target) { return is_arm(target) != at_cpu_identity_here()->is_arm; }

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

attune_status at_machine_read(const char *what, const char *text, const char *source, bool arm,
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
        if (at_machine_read("machine", option, "option", arm, machine, &is_other, err)) return err->status;
        return is_other ? at_class_refuse("machine for this ISA", option, arm, err) : ATTUNE_OK;
    }
    if (variable && *variable) {
        if (at_machine_read("ATTUNE_MACHINE", variable, "ATTUNE_MACHINE", arm, machine, &is_other, err))
            return err->status;
        if (is_other && !at_machine_is_foreign(target))
            return at_class_refuse("ATTUNE_MACHINE for this CPU", variable, arm, err);
        if (at_machine_is_foreign(target)) set_class(machine, at_class_generic, "ATTUNE_MACHINE", arm);
        return ATTUNE_OK;
    }
    set_class(machine, at_machine_is_foreign(target) ? at_class_generic : at_class_of(at_cpu_identity_here()), "cpu",
              arm);
    return ATTUNE_OK;
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

attune_status at_machine_measure(at_core_measures *measures, at_machine_class *machine, const char **kept,
                                 at_error *err) {
    const char *nearest = at_class_generic;
    if (find_nearest(measures, &nearest, err)) return err->status;
    if (nearest == at_class_generic)
        describe_this(machine);
    else
        set_class(machine, nearest, "probe", at_cpu_identity_here()->is_arm);
    *kept = nearest == at_class_generic ? machine->text : nearest;
    return ATTUNE_OK;
}
