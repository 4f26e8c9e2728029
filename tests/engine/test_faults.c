/* Every allocation and every file call of attune's fails in turn: never a crash, never a wrong result. Failures that
 * the disk cache and the loader can tolerate must not show at all. */
#define _GNU_SOURCE
#include "engine/create.h"
#include "support/engine/fake_codegen.h"
#include "support/engine/sign.h"
#include "support/statuses.h"
#include "support/temp_dir.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

/* ---- Faults: the call numbered fail_at fails, and with `for_good` all after it ---- */

static long calls, fail_at;
static bool for_good;

static bool fails_now(void) {
    calls++;
    return fail_at && (calls == fail_at || (for_good && calls > fail_at));
}

static long live_blocks;

static void *faulty_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    if (fails_now()) return NULL;
    void *pointer = at_alloc_aligned(NULL, bytes, align);
    if (pointer) live_blocks++;
    return pointer;
}

static void counting_free(void *user, void *pointer) {
    (void)user;
    live_blocks--;
    free(pointer);
}

static const attune_allocator faulty_allocator = {faulty_alloc, counting_free, NULL};

/* One wrapper for each call of the table. */
#define FAULT(error, result)                                                                                           \
    if (fails_now()) {                                                                                                 \
        errno = error;                                                                                                 \
        return result;                                                                                                 \
    }
#define REAL (at_default_io())

static int f_openat(int dir, const char *path, int flags, mode_t mode) {
    FAULT(EMFILE, -1)
    return REAL->openat(dir, path, flags, mode);
}
static int f_mkdir(const char *path, mode_t mode) {
    FAULT(EACCES, -1)
    return REAL->mkdir(path, mode);
}
static int f_fstat(int fd, struct stat *status) {
    FAULT(EIO, -1)
    return REAL->fstat(fd, status);
}
static int f_fstatat(int dir, const char *path, struct stat *status, int flags) {
    FAULT(EIO, -1)
    return REAL->fstatat(dir, path, status, flags);
}
static ssize_t f_read(int fd, void *data, size_t bytes) {
    FAULT(EIO, -1)
    return REAL->read(fd, data, bytes);
}
static ssize_t f_pread(int fd, void *data, size_t bytes, off_t offset) {
    FAULT(EIO, -1)
    return REAL->pread(fd, data, bytes, offset);
}
static ssize_t f_write(int fd, const void *data, size_t bytes) {
    FAULT(ENOSPC, -1)
    return REAL->write(fd, data, bytes);
}
static int f_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    FAULT(EPERM, -1)
    return REAL->linkat(from_dir, from, to_dir, to, flags);
}
static int f_renameat(int from_dir, const char *from, int to_dir, const char *to) {
    FAULT(EROFS, -1)
    return REAL->renameat(from_dir, from, to_dir, to);
}
static int f_unlinkat(int dir, const char *path, int flags) {
    FAULT(EBUSY, -1)
    return REAL->unlinkat(dir, path, flags);
}
static int f_futimens(int fd, const struct timespec times[2]) {
    FAULT(EROFS, -1)
    return REAL->futimens(fd, times);
}
static int f_utimensat(int dir, const char *path, const struct timespec times[2], int flags) {
    FAULT(EROFS, -1)
    return REAL->utimensat(dir, path, times, flags);
}
static int f_memfd_create(const char *name, unsigned flags) {
    FAULT(EPERM, -1)
    return REAL->memfd_create(name, flags);
}
static int f_ftruncate(int fd, off_t bytes) {
    FAULT(ENOSPC, -1)
    return REAL->ftruncate(fd, bytes);
}
static int f_fsync(int fd) {
    FAULT(EDQUOT, -1)
    return REAL->fsync(fd);
}
static void *f_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    FAULT(ENOMEM, MAP_FAILED)
    return REAL->mmap(address, bytes, protection, flags, fd, offset);
}
static int f_mprotect(void *address, size_t bytes, int protection) {
    FAULT(EACCES, -1)
    return REAL->mprotect(address, bytes, protection);
}
static int f_socketpair(int domain, int type, int protocol, int fds[2]) {
    FAULT(EMFILE, -1)
    return REAL->socketpair(domain, type, protocol, fds);
}

static const at_io faulty_io = {
    .openat = f_openat,
    .mkdir = f_mkdir,
    .fstat = f_fstat,
    .fstatat = f_fstatat,
    .read = f_read,
    .pread = f_pread,
    .write = f_write,
    .linkat = f_linkat,
    .renameat = f_renameat,
    .unlinkat = f_unlinkat,
    .futimens = f_futimens,
    .utimensat = f_utimensat,
    .memfd_create = f_memfd_create,
    .ftruncate = f_ftruncate,
    .fsync = f_fsync,
    .mmap = f_mmap,
    .mprotect = f_mprotect,
    .socketpair = f_socketpair,
};

/* ---- Scenarios: 0 done and right, 1 failed with a sentence; a wrong result fails the test ---- */

static const attune_allocator *allocator;
static const at_io *io;
static const char *cache_dir, *cache_pack = "";
static char keys[TEMP_DIR_CHARS + 16];

static int failed(void) {
    assert_true(attune_last_message()[0]);
    return 1;
}

static attune_problem small_problem(void) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.num_heads = 2;
    problem.seq_q = 3;
    problem.head_dim = 4;
    problem.has_lse = 1;
    return problem;
}

static attune_context *open_context(void) {
    static fake_codegen fake;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const at_context_hooks hooks = {.io = io, .compile = fake_compile, .compile_user = &fake};
    attune_context *context;
    options.allocator = allocator;
    options.cache_dir = cache_dir;
    options.cache_pack = cache_pack;
    options.cache_keys = keys;
    options.disk_cache_bytes = 8192; /* so small that writes sweep */
    options.max_workers = 2;
    return at_context_create(&options, &hooks, &context) ? NULL : context;
}

typedef struct tensors {
    float q[24], k[24], v[24], out[24], lse[6];
} tensors;

static void fill(tensors *t, attune_arguments *arguments, const attune_problem *problem) {
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 24; i++) {
        t->q[i] = (float)(i % 5) - 2;
        t->k[i] = (float)(i % 7) - 3;
        t->v[i] = (float)i;
    }
    assert_int_equal(attune_arguments_init(arguments, problem), ATTUNE_OK);
    arguments->q.data = t->q;
    arguments->k.data = t->k;
    arguments->v.data = t->v;
    arguments->out.data = t->out;
    arguments->lse.data = t->lse;
}

static uint32_t expected_marker; /* that the fake code generator's code writes */

static tensors interpreted; /* by a run without faults */
static bool have_interpreted;

/* Where nothing can be compiled, or code cannot be executed, the virtual machine computes what the interpreter does. */
static void assert_computed(const attune_kernel *kernel, const tensors *t) {
    uint32_t marker;
    const attune_kernel_info info = kernel_info_of(kernel);
    memcpy(&marker, t->out, 4);
    if (info.origin != ATTUNE_FROM_VM)
        assert_int_equal(marker, expected_marker);
    else
        assert_memory_equal(t, &interpreted, sizeof *t);
}

static int compile_and_run(attune_context *context) {
    const attune_problem problem = small_problem();
    attune_kernel *kernel;
    attune_arguments arguments;
    tensors t;
    int result = 0;
    if (attune_compile(context, &problem, NULL, &kernel)) {
        assert_null(kernel);
        return failed();
    }
    fill(&t, &arguments, &problem);
    if (attune_run(context, kernel, &arguments))
        result = failed();
    else
        assert_computed(kernel, &t);
    attune_kernel_release(kernel);
    return result;
}

static int run_twice(void) {
    attune_context *context = open_context();
    if (!context) return failed();
    int result = compile_and_run(context);
    attune_drop_memory_cache(context);
    result |= compile_and_run(context);
    (void)!attune_cache_clear(context, NULL); /* it, too, may meet a fault */
    attune_context_destroy(context);
    return result;
}

static int run_warm(void) {
    attune_context *context = open_context();
    if (!context) return failed();
    const int result = compile_and_run(context);
    attune_context_destroy(context);
    return result;
}

static int interpret(void) {
    const attune_problem problem = small_problem();
    attune_arguments arguments;
    tensors t;
    attune_context *context = open_context();
    if (!context) return failed();
    fill(&t, &arguments, &problem);
    int result = 0;
    if (attune_run_interpreted(context, &problem, NULL, &arguments)) {
        result = failed();
    } else {
        if (!have_interpreted) interpreted = t;
        have_interpreted = true;
        assert_memory_equal(&t, &interpreted, sizeof t);
    }
    attune_context_destroy(context);
    return result;
}

/* ---- Packs ---- */

static char pack[TEMP_DIR_CHARS + 16], signature[TEMP_DIR_CHARS + 16];

/* With a signature that will be right for whatever pack of this kernel there is: packs have equal bytes. */
static void make_keys(attune_context *context) {
    char path[TEMP_DIR_CHARS + 32], text[SIGN_TEXT];
    attune_cache_copied copied = {.struct_size = sizeof copied};
    sign_key key;
    void *data;
    char *none;
    size_t bytes;
    sign_key_make(&key, 1);
    assert_int_equal(mkdir(keys, 0755), 0);
    snprintf(path, sizeof path, "%s/fleet.pub", keys);
    sign_print_key(&key, text);
    file_write(path, text, strlen(text));
    assert_int_equal(compile_and_run(context), 0);
    assert_int_equal(attune_cache_pack(context, pack, NULL, 0, &copied), ATTUNE_OK);
    assert_int_equal(attune_cache_pack_parts(context, pack, &data, &bytes, &none), ATTUNE_OK);
    sign_print(&key, data, bytes, "timestamp:0", text);
    file_write(signature, text, strlen(text));
    assert_int_equal(attune_cache_seal(context, pack, signature), ATTUNE_OK);
    attune_free(context, data);
    attune_free(context, none);
}

static int open_pack(void) {
    cache_dir = "";
    cache_pack = pack;
    attune_context *context = open_context();
    cache_pack = "";
    if (!context) return failed();
    const int result = compile_and_run(context);
    attune_context_destroy(context);
    return result;
}

/* The cache directory, which a failure may have emptied, is made anew without faults. */
static int make_pack(void) {
    attune_cache_copied copied = {.struct_size = sizeof copied};
    const attune_allocator *const faulty = allocator;
    const at_io *const faulty_calls = io;
    const long fault = fail_at;
    char dir[sizeof keys + 8];
    int result = 0;
    snprintf(dir, sizeof dir, "%s/cache", keys);
    cache_dir = dir;
    allocator = NULL, io = NULL, fail_at = 0;
    assert_int_equal(run_warm(), 0);
    allocator = faulty, io = faulty_calls, fail_at = fault;
    calls = 0;
    attune_context *context = open_context();
    if (!context) return failed();
    if (attune_cache_pack(context, pack, NULL, 0, &copied) || attune_cache_seal(context, pack, signature))
        result = failed();
    attune_context_destroy(context);
    return result;
}

static void count_pass(void *user, const char *pass, const char *text) {
    (void)text;
    assert_true(pass[0]);
    ++*(int *)user;
}

static int hand_written(void) {
    static const char text[] = "kernel @twice (x: f32[n] in, o: f32[n] out, n: idx) {\n"
                               "  parallel for i in 0..n { o[i] = x[i] * 2.0 }\n}\n";
    attune_context *context = open_context();
    if (!context) return failed();
    attune_kernel *kernel = NULL;
    int passes = 0, result = 0;
    void *data = NULL;
    size_t bytes;
    if (attune_ir_dump_passes(context, text, count_pass, &passes)) result = failed();
    if (attune_ir_emit(context, text, ATTUNE_STAGE_LOWERED, &data, &bytes)) result = failed();
    attune_free(context, data);
    if (attune_ir_compile(context, text, &kernel)) {
        result = failed();
    } else {
        float x[3] = {1, 2, 3}, o[3] = {0};
        void *const buffers[] = {x, o};
        const int64_t n = 3;
        if (attune_ir_run(context, kernel, ATTUNE_ENGINE_INTERPRETER, buffers, &n))
            result = failed();
        else
            assert_true(o[0] == 2 && o[1] == 4 && o[2] == 6);
    }
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return result;
}

static int build_twice(void *user, const attune_build_request *request, attune_ir_writer *w) {
    (void)user;
    attune_ir_print(w, "kernel @twice (x: f32[%s] in, o: f32[%s] out) {\n", request->problem, request->problem);
    attune_ir_print(w, "%600sparallel for i in 0..%s { o[i] = x[i] * %d.0 }\n}\n", "", request->problem,
                    (int)request->schedule[0]);
    return 0;
}

static int own_operator(void) {
    static const int32_t factors[] = {2, 3};
    static const attune_choice choice = {"factor", factors, 2, 2, 0};
    attune_context *context = open_context();
    if (!context) return failed();
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_operator *op = NULL;
    attune_kernel *kernel = NULL;
    int result = 0;
    options.name = "twice";
    options.version = 1;
    options.build = build_twice;
    options.choices = &choice;
    options.num_choices = 1;
    if (attune_operator_add(context, &options, &op) || attune_operator_compile(op, "3", NULL, &kernel)) {
        result = failed();
    } else {
        float x[3] = {1, 2, 3}, o[3] = {0};
        void *const buffers[] = {x, o};
        if (attune_ir_run(context, kernel, ATTUNE_ENGINE_INTERPRETER, buffers, NULL))
            result = failed();
        else
            assert_true(o[0] == 2 && o[1] == 4 && o[2] == 6);
    }
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return result;
}

/* Runs the scenario with each of its calls failing in turn until none is left. Returns how many runs failed. */
static int each_in_turn(int (*scenario)(void), bool from_then_on) {
    int failures = 0;
    for_good = from_then_on;
    for (fail_at = 1;; fail_at++) {
        calls = 0;
        live_blocks = 0;
        failures += scenario();
        assert_int_equal(live_blocks, 0);
        if (calls < fail_at) break;
        assert_true(fail_at < 100000);
    }
    print_message("%ld calls, %d runs failed\n", fail_at - 1, failures);
    fail_at = 0;
    return failures;
}

static int set_up(void **state) {
    static char path[TEMP_DIR_CHARS];
    temp_dir_make(path);
    *state = path;
    cache_dir = path;
    allocator = NULL;
    io = NULL;
    fail_at = 0;
    snprintf(keys, sizeof keys, "%s/keys", path);
    snprintf(pack, sizeof pack, "%s/pack", path);
    snprintf(signature, sizeof signature, "%s/signature", path);
    const attune_problem problem = small_problem();
    attune_context *context = open_context();
    void *text;
    size_t bytes;
    assert_non_null(context);
    assert_int_equal(attune_emit(context, &problem, NULL, ATTUNE_STAGE_LOWERED, &text, &bytes), ATTUNE_OK);
    expected_marker = fake_marker(text, bytes);
    attune_free(context, text);
    make_keys(context);
    attune_context_destroy(context);
    return interpret();
}

static int tear_down(void **state) {
    temp_dir_remove(*state);
    return 0;
}

static void allocations(void **state) {
    (void)state;
    int (*const scenarios[])(void) = {run_twice, run_warm, interpret, hand_written, own_operator, open_pack, make_pack};
    for (size_t s = 0; s < sizeof scenarios / sizeof *scenarios; s++) {
        allocator = &faulty_allocator;
        assert_true(each_in_turn(scenarios[s], false) > 0);
        assert_true(each_in_turn(scenarios[s], true) > 0);
    }
}

/* A single failing call is always made good: by recompiling, by another way to executable memory, or by doing without
 * the disk. */
static void file_calls_one_at_a_time(void **state) {
    (void)state;
    io = &faulty_io;
    assert_int_equal(each_in_turn(run_twice, false), 0);
    fail_at = 0;
    assert_int_equal(run_warm(), 0); /* leaves an entry */
    assert_int_equal(each_in_turn(run_warm, false), 0);
}

/* A pack that cannot be read is done without. One that cannot be written leaves nothing: no file that is not whole. */
static void file_calls_of_packs(void **state) {
    char command[2 * TEMP_DIR_CHARS];
    (void)state;
    io = &faulty_io;
    assert_int_equal(each_in_turn(open_pack, false), 0);
    assert_true(each_in_turn(make_pack, false) > 0);
    fail_at = 0;
    snprintf(command, sizeof command, "! ls '%s' | grep tmp-", (const char *)*state);
    assert_int_equal(system(command), 0);
    assert_int_equal(make_pack(), 0);
    each_in_turn(open_pack, true);
    assert_true(each_in_turn(make_pack, true) > 0);
}

/* From some call on nothing works any more. There is no executable memory either, which the virtual machine does not
 * need. */
static void file_calls_from_one_on(void **state) {
    (void)state;
    io = &faulty_io;
    assert_int_equal(each_in_turn(run_twice, true), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(allocations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(file_calls_one_at_a_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(file_calls_from_one_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(file_calls_of_packs, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
