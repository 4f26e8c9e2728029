/* The plug-in is not linked with ggml, whose interface has no promised version: it looks functions up by name, checks
 * the version, and finds the numbers of operators and types by their names. All of this goes into a struct of its own
 * first, because ggml may load the plug-in again while a backend computes. */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ggml_host host;

void host_log(int level, const char *format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (host.ggml_log_internal) host.ggml_log_internal(level, "attune: %s\n", text);
}

/* ---- Functions ---- */

#define FUNCTION(name, is_needed) {#name, offsetof(ggml_host, name), is_needed}
static const struct {
    const char *name;
    size_t offset;
    bool is_needed;
} functions[] = {
    FUNCTION(ggml_log_internal, false), /* first, so that it can log what is missing */
    FUNCTION(ggml_version, true),
    FUNCTION(ggml_op_name, true),
    FUNCTION(ggml_type_name, true),
    FUNCTION(ggml_backend_buft_is_host, true),
    FUNCTION(ggml_backend_cpu_buffer_type, true),
    FUNCTION(ggml_backend_buffer_get_type, true),
    FUNCTION(ggml_backend_buffer_get_base, true),
    FUNCTION(ggml_backend_buffer_get_size, true),
    FUNCTION(ggml_backend_init_by_type, true),
    FUNCTION(ggml_backend_free, true),
    FUNCTION(ggml_backend_graph_compute, true),
    FUNCTION(ggml_backend_get_device, true),
    FUNCTION(ggml_backend_dev_backend_reg, true),
    FUNCTION(ggml_backend_reg_get_proc_address, true),
};

/* Engines in Python load ggml's libraries with RTLD_LOCAL, so the global scope may not have the functions. But the
 * library that called ggml_backend_init has them all, or depends on libraries that have them. */
static bool find_functions(const void *caller, ggml_host *h) {
    Dl_info info;
    void *extra; /* dladdr is newer than the oldest glibc of the wheel */
    void *const library =
        dladdr1(caller, &info, &extra, RTLD_DL_SYMENT) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = library ? dlsym(library, functions[i].name) : NULL;
        if (!found) found = dlsym(RTLD_DEFAULT, functions[i].name);
        if (!found && functions[i].is_needed) {
            host_log(GGML_ABI_LOG_WARN, "this ggml has no function %s, so attune computes nothing", functions[i].name);
            return false; /* the library's count stays one higher, which is harmless: it has called, so it is in use */
        }
        memcpy((char *)h + functions[i].offset, &found, sizeof found);
        if (!i && !host.ggml_log_internal) host.ggml_log_internal = h->ggml_log_internal;
    }
    return true;
}

/* ---- The version ---- */

/* The oldest and the newest version whose layouts were tested. Any patch of the newest one will do. */
static const long oldest[3] = {0, 9, 11}, newest[2] = {0, 25};

/* Negative if v is older than w, 0 if it is the same, positive if it is newer. */
static long compare(const long *v, const long *w, int count) {
    for (int i = 0; i < count; i++)
        if (v[i] != w[i]) return v[i] - w[i];
    return 0;
}

static bool check_version(ggml_host *h) {
    const char *const text = h->ggml_version();
    const char *const any = getenv("ATTUNE_GGML_ANY");
    long v[3] = {-1, -1, -1};
    char *end = (char *)text;
    for (int i = 0; i < 3 && (!i || *end++ == '.'); i++) v[i] = strtol(end, &end, 10);
    const bool is_old = compare(v, oldest, 3) < 0, is_new = compare(v, newest, 2) > 0;
    h->is_0_9 = v[0] == 0 && v[1] == 9;
    if (!is_old && !is_new) return true;
    if (is_new && any && !strcmp(any, "1")) return true;
    host_log(GGML_ABI_LOG_WARN, "ggml is of version %s; attune knows %ld.%ld.%ld to %ld.%ld, so it computes nothing%s",
             text, oldest[0], oldest[1], oldest[2], newest[0], newest[1],
             is_new ? " (ATTUNE_GGML_ANY=1 makes it try)" : "");
    return false;
}

/* ---- Numbers ---- */

/* Stops at the last of the names, because ggml does not check that a number is in range. */
static bool find_numbers(const char *(*name_of)(int), const char *what, int most, const char *const *names, int count,
                         int *numbers) {
    int found = 0;
    for (int i = 0; i < count; i++) numbers[i] = -1;
    for (int number = 0; number < most && found < count; number++) {
        const char *const name = name_of(number);
        for (int i = 0; name && i < count; i++)
            if (!strcmp(name, names[i]) && numbers[i] < 0) {
                numbers[i] = number;
                found++;
            }
    }
    for (int i = 0; i < count; i++)
        if (numbers[i] < 0) {
            host_log(GGML_ABI_LOG_WARN, "this ggml has no %s %s, so attune computes nothing", what, names[i]);
            return false;
        }
    return true;
}

static bool find_all_numbers(ggml_host *h) {
    static const char *const ops[] = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "FLASH_ATTN_EXT", "SOFT_MAX"};
    static const char *const types[GGML_NUM_CACHES] = {"f32",  "f16",  "bf16", "q8_0",  "q4_0",
                                                       "q4_1", "q5_0", "q5_1", "iq4_nl"};
    enum { MOST_OPS = 90, MOST_TYPES = 31 };
    int numbers[7];
    if (!find_numbers(h->ggml_op_name, "operator", MOST_OPS, ops, 7, numbers)) return false;
    memcpy(h->views, numbers, sizeof h->views);
    h->flash_attn_ext = numbers[5], h->soft_max = numbers[6];
    return find_numbers(h->ggml_type_name, "type", MOST_TYPES, types, GGML_NUM_CACHES, h->caches);
}

bool host_open(const void *caller) {
    ggml_host found;
    memset(&found, 0, sizeof found);
    if (!find_functions(caller, &found) || !check_version(&found) || !find_all_numbers(&found)) return false;
    if (memcmp(&host, &found, sizeof host) != 0) memcpy(&host, &found, sizeof host);
    return true;
}
