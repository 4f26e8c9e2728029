/* Tuning classes in a context: the context's own, the names of cache files, and those of other classes that stand in
 * where nothing can be compiled. */
#define _GNU_SOURCE
#include "cache/disk_files.h"
#include "engine/create.h"
#include "support/engine/contexts.h"
#include "support/engine/fake_codegen.h"
#include "support/problems.h"
#include "support/statuses.h"
#include "support/temp_dir.h"
#include "target/kernel_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL "num_heads=2,seq_q=4,head_dim=8"

/* Three classes of this architecture and of one line, the second and the third of which are as near as can be. */
#if defined(__aarch64__)
#define OWN          "neoverse-n2"
#define NEWER        "neoverse-n3"
#define OLDER        "neoverse-n1"
#define FAR          "apple-m1"
#define OTHER        "zen4" /* of the other architecture */
#define OTHER_TARGET "avx2"
#else
#define OWN          "zen4"
#define NEWER        "zen5"
#define OLDER        "zen3"
#define FAR          "haswell"
#define OTHER        "neoverse-n1"
#define OTHER_TARGET "aarch64"
#endif

static fake_codegen codegen;
static char base_dir[TEMP_DIR_CHARS];

/* ---- A CPU that nobody knows ---- */

static bool is_unknown;
const at_cpu_identity *__real_at_cpu_identity_here(void);
const at_cpu_identity *__wrap_at_cpu_identity_here(void);
const at_cpu_identity *__wrap_at_cpu_identity_here(void) {
    static at_cpu_identity unknown;
    unknown.is_arm = __real_at_cpu_identity_here()->is_arm;
    return is_unknown ? &unknown : __real_at_cpu_identity_here();
}

/* ---- Contexts ---- */

static int setup(void **state) {
    temp_dir_make(base_dir);
    messages = 0;
    codegen = (fake_codegen){0};
    is_unknown = false;
    unsetenv("ATTUNE_MACHINE");
    unsetenv("ATTUNE_STRICT");
    return temp_dir_setup(state);
}

static int teardown(void **state) {
    unsetenv("ATTUNE_MACHINE");
    unsetenv("ATTUNE_STRICT");
    temp_dir_remove(base_dir);
    return temp_dir_teardown(state);
}

typedef struct opening {
    const char *dir, *base, *machine, *target;
    const at_io *io;
    int allow_interpreter;
    attune_event_fn *event;
} opening;

static attune_status open_any(const opening *o, attune_context **context) {
    const at_context_hooks hooks = {.io = o->io, .compile = fake_compile, .compile_user = &codegen};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = o->dir ? o->dir : "";
    options.cache_base = o->base ? o->base : "";
    options.machine = o->machine;
    options.target = o->target;
    options.log = keep_message;
    options.allow_interpreter = o->allow_interpreter;
    options.event = o->event;
    return at_context_create(&options, &hooks, context);
}

static attune_context *open_one(opening o) {
    attune_context *context = NULL;
    if (open_any(&o, &context)) fail_msg("%s", attune_last_message());
    return context;
}

static attune_machine_info info_of(const attune_context *context) {
    attune_machine_info info = {.struct_size = sizeof info};
    assert_int_equal(attune_get_machine_info(context, &info), ATTUNE_OK);
    return info;
}

static attune_status try_compile(attune_context *context, const char *text, const mha_schedule *schedule,
                                 attune_kernel_info *info) {
    const attune_problem problem = problem_parsed(text);
    attune_kernel *kernel;
    const attune_status status = attune_compile(context, &problem, TEXT_OF(schedule), &kernel);
    if (status) return status;
    *info = (attune_kernel_info){.struct_size = sizeof *info};
    assert_int_equal(attune_kernel_get_info(kernel, info), ATTUNE_OK);
    attune_kernel_release(kernel);
    return ATTUNE_OK;
}

static attune_kernel_info compiled(attune_context *context, const char *text) {
    attune_kernel_info info;
    if (try_compile(context, text, NULL, &info)) fail_msg("%s", attune_last_message());
    return info;
}

/* Leaves an entry that was compiled for the class. */
static void make_entry(const char *dir, const char *machine, const char *text) {
    attune_context *context = open_one((opening){.dir = dir, .machine = machine});
    assert_string_equal(compiled(context, text).machine, machine);
    attune_context_destroy(context);
}

static attune_context *open_strict(opening o) {
    setenv("ATTUNE_STRICT", "1", 1);
    attune_context *context = open_one(o);
    unsetenv("ATTUNE_STRICT");
    return context;
}

static void path_of(const char *dir, const char *machine, char path[TEMP_DIR_CHARS + AT_FILE_CHARS]) {
    char suffix[64], file[TEMP_DIR_CHARS];
    snprintf(suffix, sizeof suffix, "-%s.attune", machine);
    temp_dir_first(dir, suffix, file);
    assert_true(*file);
    snprintf(path, TEMP_DIR_CHARS + AT_FILE_CHARS, "%s", file);
}

/* ---- Which class ---- */

static void assert_machine(opening o, const char *machine, const char *source) {
    attune_context *context = open_one(o);
    const attune_machine_info info = info_of(context);
    assert_string_equal(info.machine, machine);
    assert_string_equal(info.machine_source, source);
    attune_context_destroy(context);
}

static void option_then_environment_then_cpu(void **state) {
    (void)state;
    assert_machine((opening){0}, at_class_of(at_cpu_identity_here()), "cpu");
    setenv("ATTUNE_MACHINE", "", 1);
    assert_machine((opening){0}, at_class_of(at_cpu_identity_here()), "cpu");
    setenv("ATTUNE_MACHINE", OLDER, 1);
    assert_machine((opening){0}, OLDER, "ATTUNE_MACHINE");
    assert_machine((opening){.machine = NEWER}, NEWER, "option");
    assert_machine((opening){.machine = "generic"}, "generic", "option");
}

static void a_target_of_another_architecture(void **state) {
    (void)state;
    assert_machine((opening){.target = OTHER_TARGET}, "generic", "cpu");
    setenv("ATTUNE_MACHINE", OWN, 1); /* a class that this machine has and the target's architecture has not */
    assert_machine((opening){.target = OTHER_TARGET}, "generic", "ATTUNE_MACHINE");
    assert_machine((opening){.target = OTHER_TARGET, .machine = OTHER}, OTHER, "option");
}

static void refuse(opening o, const char *part) {
    attune_context *context = NULL;
    assert_int_equal(open_any(&o, &context), ATTUNE_INVALID_ARGUMENT);
    assert_null(context);
    if (!strstr(attune_last_message(), part)) fail_msg("%s", attune_last_message());
}

static void unknown_names_are_refused(void **state) {
    (void)state;
    refuse((opening){.machine = "pentium"}, "unknown machine \"pentium\"; there are: ");
    refuse((opening){.machine = ""}, "unknown machine \"\"; there are: ");
    refuse((opening){.machine = OTHER}, "\"" OTHER "\"; there are: ");
    setenv("ATTUNE_MACHINE", "pentium", 1);
    refuse((opening){0}, "unknown ATTUNE_MACHINE \"pentium\"; there are: ");
    assert_non_null(strstr(attune_last_message(), OWN ", "));
    setenv("ATTUNE_MACHINE", OTHER, 1);
    refuse((opening){0}, "unknown ATTUNE_MACHINE for this CPU \"" OTHER "\"; there are: ");
    setenv("ATTUNE_MACHINE", "generic", 1);
    assert_machine((opening){0}, "generic", "ATTUNE_MACHINE");
}

/* Numbers make a class of their own, whose name follows from all of them; kernels of other classes are not its own. */
static void numbers_are_a_class(void **state) {
    attune_context *context = open_one((opening){.dir = *state, .machine = OWN ",l2=2M"});
    const attune_machine_info info = info_of(context);
    attune_kernel_info kernel;
    char name[AT_CLASS_BYTES], text[1024];
    at_description d = *at_description_of(OWN, at_cpu_identity_here()->is_arm);
    d.l2 = 2 << 20;
    at_description_name(&d, name);
    assert_string_equal(info.machine, name);
    assert_string_equal(info.machine_source, "option");
    assert_non_null(strstr(info.machine_description, ",l2=2M,"));
    make_entry(*state, OWN, SMALL);
    assert_int_equal(try_compile(context, SMALL, NULL, &kernel), ATTUNE_OK);
    assert_string_equal(kernel.machine, name);
    assert_int_equal(kernel.origin, ATTUNE_FROM_COMPILER);
    snprintf(text, sizeof text, "%s", info.machine_description); /* the context's */
    attune_context_destroy(context);
    context = open_one((opening){.dir = *state, .machine = text});
    assert_int_equal(try_compile(context, SMALL, NULL, &kernel), ATTUNE_OK);
    assert_int_equal(kernel.origin, ATTUNE_FROM_DISK);
    attune_context_destroy(context);
    /* The same numbers as a class of the table are not that class. */
    context = open_one((opening){.machine = OWN});
    setenv("ATTUNE_MACHINE", info_of(context).machine_description, 1);
    attune_context_destroy(context);
    context = open_one((opening){0});
    assert_int_equal(strncmp(info_of(context).machine, "custom-", 7), 0);
    assert_string_equal(info_of(context).machine_source, "ATTUNE_MACHINE");
    attune_context_destroy(context);
    assert_machine((opening){.target = OTHER_TARGET}, "generic", "ATTUNE_MACHINE");
}

static void nonsense_is_refused(void **state) {
    (void)state;
    refuse((opening){.machine = "fma=99"}, "machine: fma is 99; it must be from 0.25 to 8");
    refuse((opening){.machine = OWN ",fmaa=2"}, "machine: there is no number \"fmaa\"; did you mean \"fma\"?");
    refuse((opening){.machine = "pentium,fma=2"}, "unknown machine \"pentium\"; there are: ");
    refuse((opening){.machine = OTHER ",fma=2"}, "unknown machine for this ISA");
    refuse((opening){.machine = OWN ","}, "machine: \"\" is not NAME=NUMBER");
    setenv("ATTUNE_MACHINE", "l1=32X", 1);
    refuse((opening){0}, "ATTUNE_MACHINE: l1 takes a number of bytes such as 32K or 1M, not \"32X\"");
    refuse((opening){.target = OTHER_TARGET}, "ATTUNE_MACHINE: l1 takes");
}

static void cpus_can_be_told_apart(void **state) {
    (void)state;
    attune_context *context = open_one((opening){0});
    const attune_machine_info info = info_of(context);
    assert_string_equal(info.cpu_description, at_cpu_description());
    assert_int_equal(info.cpu_family, at_cpu_identity_here()->family);
    assert_int_equal(info.cpu_model, at_cpu_identity_here()->model);
    assert_int_equal(info.cpu_stepping, at_cpu_identity_here()->stepping);
    attune_context_destroy(context);
}

/* ---- The probe ---- */

static void write_probe(const char *dir, const char *text) {
    char path[TEMP_DIR_CHARS + 32];
    snprintf(path, sizeof path, "%s/machine-probe", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

static void what_a_probe_left(void **state) {
    static const char *const bad[] = {
        "attune machine probe 2\n%s\nfeatures 0x%x\n" OLDER "\n",
        "attune machine probe 1\n%s, or another CPU\nfeatures 0x%x\n" OLDER "\n",
        "attune machine probe 1\n%s\nfeatures 0x1%x\n" OLDER "\n", /* others, as under another hypervisor */
        "attune machine probe 1\n%s\nfeatures 0x%x\npentium\n",
        "attune machine probe 1\n%s\nfeatures 0x%x\n" OLDER "\nmore\n",
        "attune machine probe 1\n%s\nfeatures 0x%x\n" OLDER,
        "attune machine probe 1\n%s\nfeatures 0x%x\n",
        "attune machine probe 1\n%s\n" OLDER "\n",
        "attune machine probe 1\n%s\nfeatures 0x%x\nwidth=32,fma=99\n",
        "attune machine probe 1\n%s\nfeatures 0x%x\nwidth=32,fma\n",
        "attune machine probe 1\n%s\nfeatures 0x%x\n" OTHER ",fma=2\n",
    };
    char text[512], name[AT_CLASS_BYTES];
    is_unknown = true;
    assert_machine((opening){.dir = *state}, "generic", "cpu");
    snprintf(text, sizeof text, "attune machine probe 1\n%s\nfeatures 0x%x\n" OLDER "\n", at_cpu_description(),
             at_cpu_features());
    write_probe(*state, text);
    assert_machine((opening){.dir = *state}, OLDER, "probe");
    assert_machine((opening){.dir = *state, .target = OTHER_TARGET}, "generic", "cpu");
    assert_machine((opening){.dir = *state, .machine = "generic"}, "generic", "option");
    assert_machine((opening){.base = *state}, "generic", "cpu");
    at_description d = *at_description_generic(at_cpu_identity_here()->is_arm);
    d.fma = 3;
    at_description_name(&d, name);
    snprintf(text, sizeof text, "attune machine probe 1\n%s\nfeatures 0x%x\nfma=3\n", at_cpu_description(),
             at_cpu_features());
    write_probe(*state, text);
    assert_machine((opening){.dir = *state}, name, "probe");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text, bad[i], at_cpu_description(), at_cpu_features());
#pragma GCC diagnostic pop
        write_probe(*state, text);
        assert_machine((opening){.dir = *state}, "generic", "cpu");
    }
    is_unknown = false; /* of a CPU that is known it is not read */
    snprintf(text, sizeof text, "attune machine probe 1\n%s\nfeatures 0x%x\n" OLDER "\n", at_cpu_description(),
             at_cpu_features());
    write_probe(*state, text);
    if (at_class_of(at_cpu_identity_here()) != at_class_generic)
        assert_machine((opening){.dir = *state}, at_class_of(at_cpu_identity_here()), "cpu");
    assert_int_equal(messages, 0);
}

/* Where this CPU can be probed; else it is refused. */
static void probing(void **state) {
    char text[TEMP_DIR_CHARS + 32];
    attune_context *context = open_one((opening){.dir = *state});
    attune_machine_probe probe = {.struct_size = sizeof probe};
    is_unknown = true;
    const attune_status status = attune_probe_machine(context, &probe);
    if (status == ATTUNE_UNSUPPORTED) {
        assert_int_equal(temp_dir_count(*state, "machine", ""), 0);
        attune_context_destroy(context);
        return;
    }
    assert_int_equal(status, ATTUNE_OK);
    assert_true(probe.is_kept && probe.fma > 0.5 && probe.add > 0.05);
    assert_true(at_class_find(probe.machine) || !strncmp(probe.machine, "custom-", 7));
    assert_non_null(strstr(probe.description, "width="));
    assert_string_equal(info_of(context).machine_source, "cpu"); /* of this context nothing changes */
    attune_context_destroy(context);
    assert_machine((opening){.dir = *state}, probe.machine, "probe");
    assert_int_equal(attune_probe_machine(NULL, &probe), ATTUNE_INVALID_ARGUMENT);
    context = open_one((opening){.dir = base_dir});
    probe = (attune_machine_probe){0}; /* refused before it measures and keeps anything */
    assert_int_equal(attune_probe_machine(context, &probe), ATTUNE_INVALID_ARGUMENT);
    assert_int_equal(temp_dir_count(base_dir, "machine", ""), 0);
    attune_context_destroy(context);
    snprintf(text, sizeof text, "%s/machine-probe", base_dir);
    assert_int_equal(mkdir(text, 0700), 0);
    context = open_one((opening){.dir = base_dir});
    probe = (attune_machine_probe){.struct_size = sizeof probe};
    assert_int_equal(attune_probe_machine(context, &probe), ATTUNE_IO_ERROR);
    assert_true(!probe.is_kept && probe.machine && probe.fma > 0.5);
    attune_context_destroy(context);
    context = open_one((opening){0});
    assert_int_equal(attune_probe_machine(context, &probe), ATTUNE_OK);
    assert_false(probe.is_kept);
    attune_context_destroy(context);
}

/* ---- Entries ---- */

static void one_name_and_a_file_for_each_class(void **state) {
    make_entry(*state, OWN, SMALL);
    make_entry(*state, OLDER, SMALL);
    assert_int_equal(atomic_load(&codegen.compiles), 2); /* a context that may compile does */
    attune_context *context = open_one((opening){.dir = *state, .machine = OLDER});
    const attune_kernel_info info = compiled(context, SMALL);
    assert_int_equal(info.origin, ATTUNE_FROM_DISK);
    attune_context_destroy(context);
    assert_int_equal(temp_dir_count(*state, info.key, ".attune"), 2);
    assert_int_equal(temp_dir_count(*state, info.key, "-" OWN ".attune"), 1);
    assert_int_equal(temp_dir_count(*state, info.key, "-" OLDER ".attune"), 1);
    assert_int_equal(messages, 0);
}

static void names_of_files(void **state) {
    static const char *const entries[] = {"-zen4", "-skylake-x", "-0123456789abcdef01234567", ""};
    static const char *const others[] = {"-", "-Zen4", "_zen4", "-zen4.", "-0123456789abcdef012345678"};
    char file[96];
    (void)state;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        snprintf(file, sizeof file, "0123456789abcdef0123456789abcdef%s.attune", entries[i]);
        assert_true(at_file_is_kernel(file));
        file[31] = '-';
        assert_false(at_file_is_kernel(file));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(file, sizeof file, "0123456789abcdef0123456789abcdef%s.attune", others[i]);
        assert_false(at_file_is_kernel(file));
    }
    assert_false(at_file_is_kernel("machine-probe"));
}

/* ---- Standing in ---- */

static int disk_hits_told;
static char told[1024];
static attune_status compile_ended; /* how */

static void count_hits(void *user, const attune_event *event) {
    (void)user;
    if (event->kind == ATTUNE_EVENT_COMPILE_END) compile_ended = event->status;
    if (event->kind != ATTUNE_EVENT_DISK_HIT) return;
    disk_hits_told++;
    snprintf(told, sizeof told, "%s", event->message);
}

static void where_nothing_may_be_compiled(void **state) {
    make_entry(*state, OLDER, SMALL);
    disk_hits_told = 0;
    attune_context *context = open_strict((opening){.dir = *state, .machine = OWN, .event = count_hits});
    const attune_kernel_info info = compiled(context, SMALL);
    assert_string_equal(info.machine, OLDER);
    assert_int_equal(info.origin, ATTUNE_FROM_DISK);
    assert_int_equal(info.engine, ATTUNE_ENGINE_JIT);
    compiled(context, SMALL); /* from memory: nothing is said again */
    assert_int_equal(messages, 1);
    assert_non_null(strstr(last_message, info.key));
    assert_non_null(strstr(last_message, "the kernel for " OLDER " is used, because there is none for " OWN));
    assert_non_null(strstr(last_message, "ATTUNE_STRICT"));
    assert_int_equal(disk_hits_told, 1);
    assert_non_null(strstr(told, "the kernel for " OLDER " is used"));
    const attune_statistics counts = statistics_of(context);
    assert_int_equal(counts.stand_ins, 1);
    assert_int_equal(counts.disk_hits, 1);
    assert_int_equal(counts.compiles + counts.compile_failures, 0);
    attune_kernel_info none;
    assert_int_equal(try_compile(context, SMALL ",has_lse=1", NULL, &none), ATTUNE_NOT_CACHED);
    assert_non_null(strstr(attune_last_message(), "ATTUNE_STRICT: kernel "));
    attune_context_destroy(context);
    assert_int_equal(temp_dir_count(*state, "", ".attune"), 1); /* nothing was written under this class */
    assert_int_equal(atomic_load(&codegen.compiles), 1);
}

static void where_nothing_can_be_compiled(void **state) {
    make_entry(*state, NEWER, SMALL);
    for (int interpreter = 0; interpreter < 2; interpreter++) { /* machine code is better than the interpreter */
        codegen.failure = ATTUNE_CODEGEN_MISSING;
        attune_context *context =
            open_one((opening){.dir = *state, .machine = OWN, .allow_interpreter = interpreter, .event = count_hits});
        const attune_kernel_info info = compiled(context, SMALL);
        assert_string_equal(info.machine, NEWER);
        assert_int_equal(compile_ended, ATTUNE_CODEGEN_MISSING);
        compile_ended = ATTUNE_OK;
        assert_int_equal(info.engine, ATTUNE_ENGINE_JIT);
        assert_int_equal(statistics_of(context).stand_ins, 1);
        attune_context_destroy(context);
        codegen.failure = ATTUNE_OK;
        context = open_one((opening){.dir = *state, .machine = OWN}); /* the compiler is there again */
        assert_string_equal(compiled(context, SMALL).machine, OWN);
        assert_int_equal(statistics_of(context).compiles, 1);
        attune_context_destroy(context);
        char path[TEMP_DIR_CHARS + AT_FILE_CHARS];
        path_of(*state, OWN, path);
        assert_int_equal(unlink(path), 0);
    }
    /* A compiler that fails is no missing one. */
    codegen.failure = ATTUNE_CODEGEN_FAILED;
    attune_context *context = open_one((opening){.dir = *state, .machine = OWN});
    attune_kernel_info none;
    assert_int_equal(try_compile(context, SMALL, NULL, &none), ATTUNE_CODEGEN_FAILED);
    attune_context_destroy(context);
}

static const char *stands_in(opening o) {
    attune_context *context = open_strict(o);
    attune_kernel_info info;
    const attune_status status = try_compile(context, SMALL, NULL, &info);
    assert_true(status == ATTUNE_OK || status == ATTUNE_NOT_CACHED);
    attune_context_destroy(context);
    return status ? NULL : info.machine; /* static storage */
}

static void damage(const char *dir, const char *machine) {
    char path[TEMP_DIR_CHARS + AT_FILE_CHARS];
    path_of(dir, machine, path);
    assert_int_equal(truncate(path, 100), 0);
}

static void the_nearest_that_is_whole(void **state) {
    const opening o = {.dir = *state, .base = base_dir, .machine = OWN};
    make_entry(*state, FAR, SMALL);
    assert_string_equal(stands_in(o), FAR);
    make_entry(*state, "generic", SMALL);
    assert_string_equal(stands_in(o), "generic");
    make_entry(base_dir, OLDER, SMALL);
    assert_string_equal(stands_in(o), OLDER);
    make_entry(*state, NEWER, SMALL);
    assert_string_equal(stands_in(o), NEWER);
    make_entry(*state, OWN, SMALL);
    assert_string_equal(stands_in(o), OWN);
    damage(*state, OWN);
    damage(*state, NEWER);
    assert_string_equal(stands_in(o), OLDER);
    assert_int_equal(temp_dir_count(*state, "", "-" NEWER ".attune"), 0); /* it heals */
    damage(base_dir, OLDER);
    assert_string_equal(stands_in(o), "generic");
    assert_int_equal(temp_dir_count(base_dir, "", "-" OLDER ".attune"), 1);
}

/* Whole by its checksum, but no code can be made from it. */
static void rewrite_schedule(const char *dir, const char *machine, const char *schedule) {
    char path[TEMP_DIR_CHARS + AT_FILE_CHARS];
    uint8_t data[1 << 16], *again = NULL;
    size_t bytes;
    at_cache_file entry;
    path_of(dir, machine, path);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    bytes = fread(data, 1, sizeof data, file);
    assert_null(at_cache_file_decode(data, bytes, &entry));
    entry.schedule = schedule;
    assert_int_equal(at_cache_file_encode(&entry, at_default_allocator(), &again, &bytes, NULL), ATTUNE_OK);
    rewind(file);
    assert_int_equal(fwrite(again, 1, bytes, file), bytes);
    assert_int_equal(ftruncate(fileno(file), (off_t)bytes), 0);
    fclose(file);
    at_free(at_default_allocator(), again);
}

static void one_that_cannot_be_used_gives_way(void **state) {
    const opening o = {.dir = *state, .base = base_dir, .machine = OWN};
    make_entry(base_dir, NEWER, SMALL);
    make_entry(*state, NEWER, SMALL);
    make_entry(*state, OLDER, SMALL);
    rewrite_schedule(base_dir, NEWER, "nonsense");
    assert_string_equal(stands_in(o), NEWER);
    rewrite_schedule(*state, NEWER, "nonsense");
    assert_string_equal(stands_in(o), OLDER);
    assert_int_equal(temp_dir_count(*state, "", "-" NEWER ".attune"), 0);
    rewrite_schedule(*state, OLDER, "nonsense");
    assert_null(stands_in(o));
}

/* A file that has the name of another class's entry, or of another kernel's. */
static void its_whole_key_is_compared(void **state) {
    char from[TEMP_DIR_CHARS + AT_FILE_CHARS], to[2 * TEMP_DIR_CHARS + AT_FILE_CHARS];
    const opening o = {.dir = *state, .machine = OWN};
    make_entry(*state, OLDER, SMALL);
    path_of(*state, OLDER, from);
    snprintf(to, sizeof to, "%.*s-" NEWER ".attune", (int)(strlen(from) - strlen("-" OLDER ".attune")), from);
    assert_int_equal(rename(from, to), 0);
    assert_null(stands_in(o));
    assert_int_equal(access(to, F_OK), -1); /* damage, which was removed */
    make_entry(*state, OLDER, SMALL);
    assert_string_equal(stands_in(o), OLDER);
    make_entry(base_dir, OLDER, SMALL ",has_lse=1");
    path_of(base_dir, OLDER, to);
    assert_int_equal(rename(to, from), 0);
    assert_null(stands_in(o));
}

static void an_explicit_schedule(void **state) {
    attune_kernel_info info;
    attune_context *context = open_one((opening){.dir = *state, .machine = OLDER});
    const attune_problem problem = problem_parsed(SMALL);
    const mha_schedule schedule = schedule_chosen_by(context, &problem);
    assert_int_equal(try_compile(context, SMALL, &schedule, &info), ATTUNE_OK);
    attune_context_destroy(context);
    context = open_strict((opening){.dir = *state, .machine = OWN});
    assert_int_equal(try_compile(context, SMALL, &schedule, &info), ATTUNE_OK);
    assert_string_equal(info.machine, OLDER);
    assert_string_equal(info.schedule, mha_schedule_text(&schedule).text);
    assert_int_equal(try_compile(context, SMALL, NULL, &info), ATTUNE_NOT_CACHED);
    attune_context_destroy(context);
}

static int opened;

static int count_opens(int dir, const char *path, int flags, mode_t mode) {
    assert_string_not_equal(path, "."); /* as a walk would */
    opened++;
    return at_default_io()->openat(dir, path, flags, mode);
}

static void the_directory_is_not_read(void **state) {
    at_io io = *at_default_io();
    const char *order[AT_MAX_CLASSES];
    make_entry(*state, OWN, SMALL ",has_lse=1");
    attune_context *context = open_strict((opening){.dir = *state, .machine = OWN, .io = &io});
    attune_kernel_info info;
    io.openat = count_opens;
    opened = 0;
    assert_int_equal(try_compile(context, SMALL, NULL, &info), ATTUNE_NOT_CACHED);
    assert_int_equal(opened, 1 + (int)at_class_neighbours(OWN, order));
    attune_context_destroy(context);
}

/* ---- Tools ---- */

static char stand_in[64];

static void keep_stand_in(void *user, const attune_cache_answer *answer) {
    (void)user;
    snprintf(stand_in, sizeof stand_in, "%s", answer->stand_in ? answer->stand_in : "none");
    if (answer->is_cached || !answer->nearest || !answer->stand_in) return;
    assert_string_equal(answer->differences[answer->num_differences - 1].field, "machine");
}

static void assert_why(attune_context *context, const char *text, const char *expected) {
    const attune_problem problem = problem_parsed(text);
    assert_int_equal(attune_cache_why(context, &problem, NULL, keep_stand_in, NULL), ATTUNE_OK);
    assert_string_equal(stand_in, expected);
}

static void why_says_what_would_stand_in(void **state) {
    make_entry(*state, FAR, SMALL);
    make_entry(*state, OLDER, SMALL);
    make_entry(*state, FAR, SMALL ",has_lse=1");
    attune_context *context = open_one((opening){.dir = *state, .machine = OWN});
    assert_why(context, SMALL, OLDER);
    assert_why(context, SMALL ",has_lse=1", FAR);
    assert_why(context, SMALL ",is_causal=1", "none");
    compiled(context, SMALL);
    assert_why(context, SMALL, "none");
    attune_context_destroy(context);
}

static int check_visited(void *user, const attune_cache_file *entry) {
    assert_true(entry->is_usable);
    assert_int_equal(entry->status, ATTUNE_OK);
    assert_true(!strcmp(entry->machine, OWN) || !strcmp(entry->machine, OLDER));
    ++*(int *)user;
    return 0;
}

static void entries_of_other_classes_travel(void **state) {
    char path[TEMP_DIR_CHARS + 8];
    int visited = 0;
    snprintf(path, sizeof path, "%s/out", base_dir);
    make_entry(*state, OWN, SMALL);
    make_entry(*state, OLDER, SMALL);
    make_entry(*state, OLDER, SMALL ",has_lse=1");
    attune_context *context = open_one((opening){.dir = *state, .machine = OWN});
    attune_cache_copied copied = {.struct_size = sizeof copied};
    assert_int_equal(attune_cache_visit(context, check_visited, &visited), ATTUNE_OK);
    assert_int_equal(visited, 3);
    assert_int_equal(attune_cache_export(context, path, &copied), ATTUNE_OK);
    assert_int_equal(copied.added, 3);
    assert_int_equal(copied.other_class, 2);
    assert_int_equal(copied.foreign, 0);
    assert_int_equal(attune_cache_clear(context, NULL), ATTUNE_OK);
    assert_int_equal(attune_cache_import(context, path, &copied), ATTUNE_OK);
    assert_int_equal(copied.added, 3);
    assert_int_equal(copied.other_class, 2);
    assert_int_equal(attune_cache_import(context, path, &copied), ATTUNE_OK);
    assert_int_equal(copied.known, 3);
    assert_int_equal(copied.other_class, 2);
    attune_context_destroy(context);
    temp_dir_remove(path);
}

/* The files of attune 0.1 had no class in their names, and must not stay for good. */
static void entries_of_an_older_attune_are_evicted(void **state) {
    char path[TEMP_DIR_CHARS + AT_FILE_CHARS], old[TEMP_DIR_CHARS + 64];
    make_entry(*state, OWN, SMALL);
    path_of(*state, OWN, path);
    snprintf(old, sizeof old, "%s/0123456789abcdef0123456789abcdef.attune", (char *)*state);
    assert_int_equal(rename(path, old), 0);
    attune_context *context = open_one((opening){.dir = *state});
    attune_cache_collected collected = {.struct_size = sizeof collected};
    assert_int_equal(attune_cache_gc(context, 0, &collected), ATTUNE_OK);
    assert_int_equal(collected.removed, 1);
    attune_context_destroy(context);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* The model's peak is the machine's, however narrow the schedule's vectors are. */
static void peak_of_the_machine(void **state) {
    (void)state;
    attune_context *const context = open_one((opening){.machine = "zen4", .target = "avx512"});
    const attune_problem problem = problem_parsed("num_heads=2,seq_q=100,head_dim=64");
    attune_prediction wide = {.struct_size = sizeof wide}, narrow = wide;
    assert_int_equal(attune_schedule_predict(context, &problem, NULL, &wide), ATTUNE_OK);
    assert_int_equal(schedule_read(wide.schedule).lanes, 16);
    assert_int_equal(attune_schedule_predict(context, &problem, "lanes=4", &narrow), ATTUNE_OK);
    assert_int_equal(schedule_read(narrow.schedule).lanes, 4);
    assert_true(narrow.scores > wide.scores);
    assert_true(narrow.flops_per_cycle == wide.flops_per_cycle && wide.flops_per_cycle == 32);
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(option_then_environment_then_cpu),
        TEST(a_target_of_another_architecture),
        TEST(unknown_names_are_refused),
        TEST(numbers_are_a_class),
        TEST(nonsense_is_refused),
        TEST(cpus_can_be_told_apart),
        TEST(what_a_probe_left),
        TEST(probing),
        TEST(peak_of_the_machine),
        TEST(one_name_and_a_file_for_each_class),
        TEST(names_of_files),
        TEST(where_nothing_may_be_compiled),
        TEST(where_nothing_can_be_compiled),
        TEST(the_nearest_that_is_whole),
        TEST(one_that_cannot_be_used_gives_way),
        TEST(its_whole_key_is_compared),
        TEST(an_explicit_schedule),
        TEST(the_directory_is_not_read),
        TEST(why_says_what_would_stand_in),
        TEST(entries_of_other_classes_travel),
        TEST(entries_of_an_older_attune_are_evicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
