/* A message is one line on standard error, and what was written to standard output is checked once, at the end. */
#define _GNU_SOURCE
#include "common/tool.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- Messages ---- */

static atomic_bool shows_progress;
static const char clear_line[] = "\r\033[K";

void tool_progress(const char *format, ...) {
    if (!isatty(STDERR_FILENO)) return;
    char *text = NULL;
    va_list list;
    va_start(list, format);
    if (vasprintf(&text, format, list) < 0) text = NULL;
    va_end(list);
    shows_progress = true;
    fprintf(stderr, "\r%s\033[K", text ? text : "");
    free(text);
}

void tool_end_progress(void) {
    shows_progress = false;
    if (isatty(STDERR_FILENO)) fputs(clear_line, stderr);
}

void tool_error(const char *format, ...) {
    char *text = NULL;
    va_list list;
    va_start(list, format);
    if (vasprintf(&text, format, list) < 0) text = NULL;
    va_end(list);
    /* A message may quote user input: line ends and escapes in it must not reach the terminal. */
    for (char *at = text; at && *at; at++)
        if (iscntrl((unsigned char)*at)) *at = '?';
    fprintf(stderr, "%sattune: %s\n", atomic_exchange(&shows_progress, false) ? clear_line : "",
            text ? text : "out of memory");
    free(text);
}

int tool_library_error(const char *doing) {
    const char *message = attune_last_message();
    if (doing)
        tool_error("%s: %s", doing, message);
    else
        tool_error("%s", message);
    return TOOL_FAILED;
}

/* Whether the warning before said the same. Any thread may ask. */
static bool is_repeated(const char *message) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char before[ATTUNE_MESSAGE_BYTES];
    pthread_mutex_lock(&lock);
    const bool same = strcmp(before, message) == 0;
    snprintf(before, sizeof before, "%s", message);
    pthread_mutex_unlock(&lock);
    return same;
}

/* Many kernels, one after the other, may have one reason for a warning: it is printed once, not for each of them. */
static void log_to_stderr(void *user, attune_log_level level, const char *message) {
    (void)user;
    if (level > ATTUNE_LOG_WARNING || (level == ATTUNE_LOG_WARNING && is_repeated(message))) return;
    tool_error("%s%s", level == ATTUNE_LOG_WARNING ? "warning: " : "", message);
}

/* The errno of the first failed write to stdout: later writes may succeed. */
static int output_failure;

static void note_output(bool is_good) {
    if (!is_good && !output_failure) output_failure = errno ? errno : EIO;
}

void tool_flush(void) {
    errno = 0;
    note_output(fflush(stdout) == 0);
}

int tool_finish(int code) {
    tool_flush();
    note_output(!ferror(stdout));
    if (!output_failure) return code;
    /* A reader that went away (`attune … | head`) needs no message. */
    if (output_failure != EPIPE) tool_error("cannot write to standard output: %s", strerror(output_failure));
    return TOOL_FAILED;
}

json_t *tool_json_text(const char *text) {
    json_t *const value = json_string(text);
    if (value) return value;
    char *const copy = strdup(text);
    for (char *at = copy; at && *at; at++)
        if ((unsigned char)*at >= 0x80) *at = '?';
    json_t *const replaced = copy ? json_string(copy) : NULL;
    free(copy);
    return replaced;
}

int tool_print_json(json_t *value) {
    if (!value) {
        tool_error("out of memory while building the JSON output");
        return TOOL_FAILED;
    }
    errno = 0;
    note_output(json_dumpf(value, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6)) == 0 &&
                fputc('\n', stdout) != EOF);
    json_decref(value);
    return TOOL_OK;
}

/* ---- Options ---- */

static error_t parse_common(int key, char *argument, struct argp_state *state) {
    tool_common *common = state->input;
    switch (key) {
    case TOOL_KEY_ISA: common->isa = argument; return 0;
    case TOOL_KEY_CACHE_DIR: common->cache_dir = argument; return 0;
    case TOOL_KEY_CACHE_BASE: common->cache_base = argument; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option common_options[] = {
    {"isa", TOOL_KEY_ISA, "NAME", 0, "Generate code for this instruction set instead of the best (ATTUNE_ISA)", 0},
    {"cache-dir", TOOL_KEY_CACHE_DIR, "DIR", 0, "Keep compiled kernels here (ATTUNE_CACHE_DIR); empty: nowhere", 0},
    {"cache-base", TOOL_KEY_CACHE_BASE, "DIR", 0,
     "Look for kernels here as well, but write nothing (ATTUNE_CACHE_BASE)", 0},
    {0},
};
static const struct argp common_argp = {.options = common_options, .parser = parse_common};
const struct argp_child tool_common_children[] = {{&common_argp, 0, "Common options:", 9}, {0}};

void tool_check_target(struct argp_state *state, const tool_common *common, bool runs_nothing, const char *needs) {
    if (common->target && !runs_nothing) argp_error(state, "--target needs %s: nothing is run then", needs);
    if (common->target && common->isa) argp_error(state, "--target and --isa exclude each other");
}

void tool_take_one(struct argp_state *state, const char *what, char *argument, const char **taken) {
    if (*taken) argp_error(state, "one %s only, but '%s' follows '%s'", what, argument, *taken);
    *taken = argument;
}

static attune_stage parse_stage(struct argp_state *state, const char *text) {
    static const char *const names[] = {"ir", "lowered", "llvm", "asm", "obj", "image"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) return (attune_stage)i;
    argp_error(state, "--emit is one of ir, lowered, llvm, asm, obj and image, not '%s'", text);
    return ATTUNE_STAGE_IR;
}

bool tool_parse_emission(struct argp_state *state, int key, char *argument, tool_common *common, tool_emission *e) {
    switch (key) {
    case TOOL_KEY_EMIT:
        e->stage = parse_stage(state, argument);
        e->emits = true;
        return true;
    case 'o': e->out = argument; return true;
    case TOOL_KEY_TARGET: common->target = argument; return true;
    case TOOL_KEY_DUMP_PASSES: e->dumps = true; return true;
    default: return false;
    }
}

void tool_check_emission(struct argp_state *state, const tool_common *common, const tool_emission *e, bool json,
                         const char *else_out) {
    tool_check_target(state, common, e->emits || e->dumps, "--emit or --dump-passes");
    if (e->out && !e->emits) argp_error(state, "-o needs --emit%s", else_out);
    if (json && (e->emits || e->dumps))
        argp_error(state, "--json and %s exclude each other", e->emits ? "--emit" : "--dump-passes");
}

/* --engine=vm: nothing is compiled, no cache is read, and tier 0 has no machine code either. --engine=jit: nothing else
 * takes the place of machine code that cannot be made. */
static bool uses_vm, needs_machine_code;

attune_context *tool_open_context(const tool_common *common, uint32_t max_workers, const char *cache_dir) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_base = common->cache_base;
    options.log = log_to_stderr;
    options.isa = common->isa;
    options.target = common->target;
    options.cache_dir = cache_dir ? cache_dir : common->cache_dir;
    if (cache_dir) options.cache_base = ""; /* a cache that begins empty must have no base, and no pack by itself */
    if (cache_dir && *cache_dir) options.strict = -1; /* nor is there anything in it to be strict about */
    options.cache_pack = common->cache_pack ? common->cache_pack : cache_dir ? "" : NULL;
    if (uses_vm) {
        setenv("ATTUNE_TIER0", "off", 1);
        options.compile_mode = ATTUNE_COMPILE_NEVER;
        options.cache_dir = options.cache_base = options.cache_pack = "";
    }
    options.machine_code_only = needs_machine_code;
    options.max_workers = max_workers;
    options.compile_processes = 64; /* the most that there may be: `warm --jobs` says how many compile */
    attune_context *context = NULL;
    if (attune_context_create(&options, &context) == ATTUNE_OK) return context;
    tool_library_error(NULL);
    return NULL;
}

int64_t tool_parse_integer(struct argp_state *state, const char *name, const char *text, int64_t low, int64_t high) {
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        argp_error(state, "--%s must be a whole number from %lld to %lld, not '%s'", name, (long long)low,
                   (long long)high, text);
    return value;
}

double tool_parse_seconds(struct argp_state *state, const char *name, const char *text, double low, double high) {
    char *end = NULL;
    const double seconds = strtod(text, &end);
    if (end == text || (*end && strcmp(end, "s") != 0) || !(seconds >= low && seconds <= high))
        argp_error(state, "--%s must be from %gs to %gs, not '%s'", name, low, high, text);
    return seconds;
}

bool tool_threads_fit(uint32_t threads) {
    cpu_set_t allowed;
    if (threads <= 1) return true;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        tool_error("cannot read the CPU affinity: %s", strerror(errno));
        return false;
    }
    if (threads <= (uint32_t)CPU_COUNT(&allowed)) return true;
    tool_error("--threads is %u, but the process may use %d CPUs", threads, CPU_COUNT(&allowed));
    return false;
}

attune_engine tool_parse_engine(struct argp_state *state, const char *text) {
    uses_vm = strcmp(text, "vm") == 0;
    needs_machine_code = strcmp(text, "jit") == 0;
    if (uses_vm) return ATTUNE_ENGINE_VM;
    if (needs_machine_code) return ATTUNE_ENGINE_JIT;
    if (strcmp(text, "interp") != 0) argp_error(state, "--engine is 'jit', 'vm' or 'interp', not '%s'", text);
    return ATTUNE_ENGINE_INTERPRETER;
}

attune_weight_layout tool_parse_layout(struct argp_state *state, const char *text) {
    if (strcmp(text, "out_in") == 0) return ATTUNE_OUT_IN;
    if (strcmp(text, "in_out") != 0) argp_error(state, "--layout is 'out_in' or 'in_out', not '%s'", text);
    return ATTUNE_IN_OUT;
}

const char *tool_dtype_name(attune_dtype dtype) {
    static const char *const names[ATTUNE_DTYPE_COUNT] = {"f32",  "f32", "f16", "bf16", "f64",
                                                          "bool", "i32", "i8",  "f8",   "i4"};
    return names[dtype];
}

const char *tool_engine_option(attune_engine engine) {
    return engine == ATTUNE_ENGINE_JIT ? "jit" : engine == ATTUNE_ENGINE_VM ? "vm" : "interp";
}

const char *tool_vm_option(void) { return uses_vm ? " --engine=vm" : ""; }

const char *tool_engine_name(attune_engine engine) {
    return engine == ATTUNE_ENGINE_JIT  ? "machine code"
           : engine == ATTUNE_ENGINE_VM ? "virtual machine"
                                        : "interpreter";
}

const char *tool_origin_place(attune_origin origin) {
    switch (origin) {
    case ATTUNE_FROM_MEMORY: return "the memory cache";
    case ATTUNE_FROM_DISK: return "the disk cache";
    case ATTUNE_FROM_PACK: return "the pack";
    case ATTUNE_FROM_BUNDLE: return "the bundle";
    case ATTUNE_FROM_VM: return "the virtual machine";
    case ATTUNE_FROM_TIER0: return "tier 0";
    default: return "the compiler";
    }
}

const char *tool_origin_name(attune_origin origin) {
    const char *const place = tool_origin_place(origin);
    return strncmp(place, "the ", 4) ? place : place + 4;
}

char *tool_trimmed(char *text) {
    static const char space[] = " \t\r";
    text += strspn(text, space);
    for (size_t n = strlen(text); n && strchr(space, text[n - 1]); n--) text[n - 1] = '\0';
    return text;
}

/* ---- Files ---- */

static bool write_all(int fd, const char *data, size_t bytes) {
    while (bytes) {
        const ssize_t put = write(fd, data, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        data += put;
        bytes -= (size_t)put;
    }
    return true;
}

static bool write_in_place(const char *path, const void *head, size_t head_bytes, const void *data, size_t bytes) {
    const bool is_stdout = strcmp(path, "-") == 0;
    if (is_stdout && fflush(stdout) != 0) return false;
    const int fd = is_stdout ? STDOUT_FILENO : open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool written = write_all(fd, head, head_bytes) && write_all(fd, data, bytes);
    if (is_stdout) return written;
    const int error = errno;
    const bool closed = close(fd) == 0;
    if (!written) errno = error;
    return written && closed;
}

/* A killed process with the same number may have left such a file. */
static int open_temporary(const char *path) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, fd = open(path, flags, 0666);
    return fd < 0 && errno == EEXIST && unlink(path) == 0 ? open(path, flags, 0666) : fd;
}

static bool write_by_rename(const char *path, const void *head, size_t head_bytes, const void *data, size_t bytes) {
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.%ld.tmp", path, (long)getpid()) < 0) {
        errno = ENOMEM;
        return false;
    }
    const int fd = open_temporary(temporary);
    bool good = fd >= 0;
    if (good) {
        good = write_all(fd, head, head_bytes) && write_all(fd, data, bytes);
        int error = errno;
        if (close(fd) != 0 && good) {
            good = false;
            error = errno;
        }
        if (good && rename(temporary, path) != 0) {
            good = false;
            error = errno;
        }
        if (!good) unlink(temporary);
        errno = error;
    }
    const int error = errno;
    free(temporary);
    errno = error;
    return good;
}

bool tool_write_file(const char *path, const void *head, size_t head_bytes, const void *data, size_t bytes,
                     char message[ATTUNE_MESSAGE_BYTES]) {
    struct stat status;
    const bool in_place = strcmp(path, "-") == 0 || (stat(path, &status) == 0 && !S_ISREG(status.st_mode));
    /* The target of a link is replaced, not the link. */
    char *const target = in_place ? NULL : realpath(path, NULL);
    const bool written = in_place ? write_in_place(path, head, head_bytes, data, bytes)
                                  : write_by_rename(target ? target : path, head, head_bytes, data, bytes);
    const int error = errno;
    free(target);
    if (written) return true;
    const char *const name = strcmp(path, "-") == 0 ? "standard output" : *path ? path : "''";
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%s: cannot write: %s", name, strerror(error));
    return false;
}

bool tool_can_write(const char *path) {
    struct stat status;
    const char *const slash = strrchr(path, '/');
    bool good = *path != '\0';
    if (!good) errno = ENOENT;
    if (good && stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        errno = EISDIR;
        good = !S_ISDIR(status.st_mode) && access(path, W_OK) == 0; /* a device or a pipe is written in place */
    } else if (good) {
        char *const folder = strndup(path, slash ? (size_t)(slash - path) + 1 : 0);
        good = folder && access(*folder ? folder : ".", W_OK | X_OK) == 0;
        const int error = errno;
        free(folder);
        errno = error;
    }
    if (!good) tool_error("%s: cannot write: %s", *path ? path : "''", strerror(errno));
    return good;
}

/* ---- Numbers ---- */

double tool_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare_doubles(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double tool_median(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

uint64_t tool_random_next(tool_random *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t tool_random_range(tool_random *random, int64_t low, int64_t high) {
    return low + (int64_t)(tool_random_next(random) % (uint64_t)(high - low + 1));
}

bool tool_random_chance(tool_random *random, int percent) { return tool_random_range(random, 1, 100) <= percent; }

float tool_random_normal(tool_random *random) {
    /* The sum of the four 16-bit pieces of one draw has variance 1/3 in units of one piece. */
    const uint64_t bits = tool_random_next(random);
    const int64_t sum = (int64_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return (float)((double)(sum - 2 * 65535) / 65536.0 * 1.7320508075688772);
}

bool tool_looks_cut(const char *text, size_t arguments) { return arguments > 1 && !strchr(text, ','); }
