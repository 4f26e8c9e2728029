/* The public API from end to end, with the real code generator. */
#define _GNU_SOURCE
#include <attune.h>

#include "support/problems.h"
#include "support/engine/contexts.h"
#include "support/statuses.h"
#include "support/temp_dir.h"

#include <elf.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

static char cache_dir[TEMP_DIR_CHARS];

static attune_context *open_with(attune_context_options options) {
    if (!options.cache_dir) options.cache_dir = cache_dir;
    return test_context(&options, NULL);
}

static attune_context *open_default(void) { return open_with((attune_context_options)ATTUNE_CONTEXT_OPTIONS_INIT); }

/* ---- A call with its tensors ---- */

typedef struct call {
    attune_problem problem;
    attune_arguments arguments;
    float *q, *k, *v, *out, *lse;
    size_t out_count, lse_count;
} call;

static float *make_tensor(size_t count, unsigned seed) {
    float *data = aligned_alloc(64, (count * sizeof *data + 63) / 64 * 64);
    assert_non_null(data);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1103515245u + 12345u;
        data[i] = (float)(seed >> 16 & 0x7fff) / 16384.0f - 1.0f;
    }
    return data;
}

static call make_call(const char *text) {
    call c = {.problem = problem_parsed(text)};
    assert_ok(attune_arguments_init(&c.arguments, &c.problem));
    const attune_problem *p = &c.problem;
    const size_t heads = (size_t)(p->batch * p->num_heads), seq_q = (size_t)p->seq_q;
    const size_t seq_kv = (size_t)(p->seq_kv ? p->seq_kv : p->seq_q), dim = (size_t)p->head_dim;
    c.lse_count = heads * seq_q;
    c.out_count = c.lse_count * dim;
    c.q = make_tensor(c.out_count, 1);
    c.k = make_tensor(heads * seq_kv * dim, 2);
    c.v = make_tensor(heads * seq_kv * dim, 3);
    c.out = make_tensor(c.out_count, 4);
    c.lse = make_tensor(c.lse_count, 5);
    c.arguments.q.data = c.q;
    c.arguments.k.data = c.k;
    c.arguments.v.data = c.v;
    c.arguments.out.data = c.out;
    c.arguments.lse.data = c.lse;
    return c;
}

static void free_call(call *c) {
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->out);
    free(c->lse);
}

#define SMALL "batch=2,num_heads=4,num_kv_heads=2,seq_q=13,seq_kv=21,head_dim=12,is_causal=1,has_lse=1"

/* Runs it by the interpreter into fresh memory and compares all bits. */
static void assert_right(attune_context *context, call *c) {
    float *out = make_tensor(c->out_count, 6), *lse = make_tensor(c->lse_count, 7);
    attune_arguments arguments = c->arguments;
    arguments.out.data = out;
    arguments.lse.data = lse;
    assert_ok(attune_run_interpreted(context, &c->problem, NULL, &arguments));
    assert_memory_equal(c->out, out, c->out_count * sizeof *out);
    if (c->problem.has_lse) assert_memory_equal(c->lse, lse, c->lse_count * sizeof *lse);
    free(out);
    free(lse);
}

static void compile_run_check(attune_context *context, attune_engine engine, attune_origin origin) {
    call c = make_call(SMALL);
    attune_kernel *kernel = kernel_of(context, &c.problem);
    const attune_kernel_info info = kernel_info_of(kernel);
    assert_int_equal(info.engine, engine);
    assert_int_equal(info.origin, origin);
    assert_int_equal(strlen(info.key), 32);
    assert_ok(attune_run(context, kernel, &c.arguments));
    assert_right(context, &c);
    attune_kernel_release(kernel);
    free_call(&c);
}

static bool maps_llvm(void) {
    char line[1024];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) found = found || strstr(line, "libLLVM") || strstr(line, "attune-codegen");
    fclose(maps);
    return found;
}

/* ---- The ways a kernel comes ---- */

/* A child compiles; this process then only hits, and must never see LLVM. First of all tests for that reason. */
static void hits_need_no_llvm(void **state) {
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        attune_context *context = open_default();
        compile_run_check(context, ATTUNE_ENGINE_JIT, ATTUNE_FROM_COMPILER);
        attune_context_destroy(context);
        _exit(maps_llvm() ? 0 : 3);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    attune_context *context = open_default();
    compile_run_check(context, ATTUNE_ENGINE_JIT, ATTUNE_FROM_DISK);
    const attune_statistics statistics = statistics_of(context);
    assert_int_equal(statistics.disk_hits, 1);
    assert_int_equal(statistics.compiles, 0);
    assert_false(maps_llvm());
    attune_context_destroy(context);
}

static void worker_survives_its_death(void **state) {
    (void)state;
    attune_context *context = open_with((attune_context_options){
        .struct_size = sizeof(attune_context_options), .compile_mode = ATTUNE_COMPILE_WORKER, .cache_dir = ""});
    call c = make_call(SMALL);
    attune_kernel *kernel = kernel_of(context, &c.problem);
    assert_ok(attune_run(context, kernel, &c.arguments));
    assert_right(context, &c);
    attune_kernel_release(kernel);
    assert_false(maps_llvm());

    /* Its only child is the idle worker. */
    char path[64], children[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%ld/children", (long)getpid());
    const int fd = open(path, O_RDONLY);
    if (fd >= 0) {
        assert_true(read(fd, children, sizeof children - 1) > 0);
        close(fd);
        assert_int_equal(kill(atoi(children), SIGKILL), 0);
        attune_drop_memory_cache(context);
        kernel = kernel_of(context, &c.problem);
        attune_kernel_release(kernel);
        const attune_statistics statistics = statistics_of(context);
        assert_int_equal(statistics.worker_restarts, 1);
    }
    free_call(&c);
    attune_context_destroy(context);
}

static void write_script(const char *path, const char *text) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void keep_line(void *user, attune_log_level level, const char *message) {
    (void)level;
    snprintf(user, ATTUNE_MESSAGE_BYTES, "%s", message);
}

/* The virtual machine serves, and the log says why: the sentence holds `part`. */
static void vm_runs(attune_compile_mode mode, const char *part) {
    char line[ATTUNE_MESSAGE_BYTES] = "";
    attune_context *context = open_with((attune_context_options){.struct_size = sizeof(attune_context_options),
                                                                 .compile_mode = mode,
                                                                 .cache_dir = "",
                                                                 .log = keep_line,
                                                                 .log_user = line});
    compile_run_check(context, ATTUNE_ENGINE_VM, ATTUNE_FROM_VM);
    if (!strstr(line, "the virtual machine runs this kernel") || !strstr(line, part))
        fail_msg("\"%s\" is not in: %s", part, line);
    attune_context_destroy(context);
}

static void broken_workers(void **state) {
    (void)state;
    char path[TEMP_DIR_CHARS + 16];
    snprintf(path, sizeof path, "%s/worker", cache_dir);
    setenv("ATTUNE_CODEGEN_WORKER", path, 1);
    vm_runs(ATTUNE_COMPILE_WORKER, path);
    write_script(path, "#!/bin/sh\nkill -ABRT $$\n");
    vm_runs(ATTUNE_COMPILE_WORKER, "does not start");
    write_script(path, "no program\n");
    vm_runs(ATTUNE_COMPILE_WORKER, "could not be started");
    write_script(path, "#!/bin/sh\nprintf 'AtWK\\001\\000\\000\\000\\003\\000\\000\\000old'\nsleep 1\n");
    vm_runs(ATTUNE_COMPILE_WORKER, "is of build old");
    unlink(path);
    unsetenv("ATTUNE_CODEGEN_WORKER");
}

static void missing_plugin(void **state) {
    (void)state;
    setenv("ATTUNE_CODEGEN", "/nowhere/libattune-codegen.so", 1);
    vm_runs(ATTUNE_COMPILE_IN_PROCESS, "/nowhere/libattune-codegen.so");
    setenv("ATTUNE_CODEGEN", "libm.so.6", 1);
    vm_runs(ATTUNE_COMPILE_IN_PROCESS, "is no code generator of attune");
    vm_runs(ATTUNE_COMPILE_NEVER, "ATTUNE_COMPILE_NEVER");
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.allow_interpreter = 1;
    options.cache_dir = "";
    attune_context *context = open_with(options);
    compile_run_check(context, ATTUNE_ENGINE_INTERPRETER, ATTUNE_FROM_COMPILER);
    attune_context_destroy(context);
    options = (attune_context_options)ATTUNE_CONTEXT_OPTIONS_INIT;
    options.machine_code_only = 1;
    options.cache_dir = "";
    context = open_with(options);
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel;
    problem.seq_q = problem.head_dim = 8;
    assert_fails(attune_compile(context, &problem, NULL, &kernel), ATTUNE_CODEGEN_MISSING, "no code generator");
    attune_context_destroy(context);
    unsetenv("ATTUNE_CODEGEN");
    options.machine_code_only = 3;
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT,
                 "machine_code_only is 3; it must be 0, 1 or 2");
    options.machine_code_only = -1;
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT, "machine_code_only is -1");
}

/* ---- Keys ---- */

static void kernels_are_shared(void **state) {
    (void)state;
    attune_context *context = open_default();
    attune_kernel *a, *b;
    call c = make_call(SMALL), d = make_call("batch=5,num_heads=6,num_kv_heads=3,seq_q=13,seq_kv=21,head_dim=12,"
                                             "is_causal=1,has_lse=1,layout=bshd");
    a = kernel_of(context, &c.problem);
    b = kernel_of(context, &d.problem);
    assert_ptr_equal(a, b);
    assert_ok(attune_run(context, a, &d.arguments));
    assert_right(context, &d);
    attune_kernel_release(b);
    attune_problem other = c.problem;
    other.head_dim = 13;
    b = kernel_of(context, &other);
    assert_ptr_not_equal(a, b);
    attune_kernel_release(b);

    mha_schedule schedule = schedule_chosen_by(context, &c.problem);
    assert_ok(attune_compile(context, &c.problem, mha_schedule_text(&schedule).text, &b));
    assert_ptr_not_equal(a, b); /* an explicit schedule is part of the key */
    assert_ok(attune_run(context, b, &c.arguments));
    assert_right(context, &c);
    attune_kernel_release(b);
    /* Each number of a schedule makes another kernel, or no legal one. */
    attune_kernel_info info = {.struct_size = sizeof info}, base = {.struct_size = sizeof base};
    assert_ok(attune_compile(context, &c.problem, mha_schedule_text(&schedule).text, &b));
    assert_ok(attune_kernel_get_info(b, &base));
    attune_kernel_release(b);
    enum { END = offsetof(mha_schedule, gemm_rows) }; /* what follows is for blocks */
    int legal = 0;
    for (size_t at = offsetof(mha_schedule, lanes); at < END; at += sizeof(int32_t)) {
        for (int32_t value = 1; value <= 16; value++) {
            mha_schedule changed = schedule;
            memcpy((char *)&changed + at, &value, sizeof value);
            if (!strcmp(mha_schedule_text(&changed).text, mha_schedule_text(&schedule).text)) continue;
            if (attune_compile(context, &c.problem, mha_schedule_text(&changed).text, &b)) continue;
            assert_ok(attune_kernel_get_info(b, &info));
            assert_string_not_equal(info.key, base.key);
            const mha_schedule made = schedule_read(info.schedule);
            assert_memory_equal(&made, &changed, END);
            attune_kernel_release(b);
            legal++;
            break;
        }
    }
    assert_true(legal >= 4);
    /* Nor does a kernel that is there hide what is wrong with the schedule. */
    assert_ok(attune_compile(context, &c.problem, mha_schedule_text(&schedule).text, &b));
    attune_kernel_release(b);
    assert_int_equal(attune_compile(context, &c.problem, "lanes=3", &b), ATTUNE_INVALID_SCHEDULE);
    assert_int_equal(attune_compile(context, &c.problem, "rows=3", &b), ATTUNE_INVALID_SCHEDULE);
    attune_kernel_release(a);
    free_call(&c);
    free_call(&d);
    attune_context_destroy(context);
}

/* ---- Bad arguments ---- */

static void bad_arguments(void **state) {
    (void)state;
    attune_context *context = open_default();
    call c = make_call(SMALL);
    attune_arguments a;
    attune_kernel *kernel = kernel_of(context, &c.problem);
#define BAD(change, part)                                                                                              \
    a = c.arguments;                                                                                                   \
    change;                                                                                                            \
    assert_fails(attune_run(context, kernel, &a), ATTUNE_INVALID_ARGUMENT, part)
    BAD(a.struct_size = 8, "struct_size is 8");
    BAD(a.q.data = NULL, "pointer to q is NULL");
    BAD(a.lse.data = NULL, "pointer to lse is NULL");
    BAD(a.k.data = (char *)a.k.data + 2, "pointer to k");
    BAD(a.out.data = (void *)a.q.data, "the output out overlaps q");
    BAD(a.lse.data = (float *)a.out.data + 7, "overlaps");
    BAD(a.out.data = c.k + 3, "the output out overlaps k");
    BAD(a.lse.data = c.q + 5, "the output lse overlaps q");
    BAD(a.lse.data = c.v, "the output lse overlaps v");
    BAD(a.lse.data = c.v + 2 * 2 * 21 * 12 - 1, "the output lse overlaps v"); /* the last element that is read */
    BAD(a.batch = 0, "batch is 0");
    BAD(a.num_heads = -4, "num_heads is -4");
    BAD(a.num_kv_heads = 4, "groups of 2");
    BAD(a.num_heads = 3, "groups of 2");
    BAD(a.q.strides[3] = 2, "innermost stride of q is 2");
    BAD(a.k.strides[0] = -1, "k_strides[0] is -1");
    BAD(a.batch = INT64_MAX, "batch is 9223372036854775807");
    BAD(a.out.strides[0] = 1, "coincide");
    BAD(a.workspace = (char *)c.lse + 4; a.workspace_bytes = 1 << 20, "not aligned to 64");
#undef BAD
    size_t bytes = 0;
    assert_ok(attune_workspace_size(context, kernel, &c.arguments, &bytes));
    assert_true(bytes > 0);
    c.arguments.workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    c.arguments.workspace_bytes = bytes - 1;
    assert_fails(attune_run(context, kernel, &c.arguments), ATTUNE_WORKSPACE_TOO_SMALL, "this call needs");
    c.arguments.workspace_bytes = bytes;
    assert_ok(attune_run(context, kernel, &c.arguments));
    assert_right(context, &c);
    free(c.arguments.workspace);
    assert_fails(attune_run(NULL, kernel, &c.arguments), ATTUNE_INVALID_ARGUMENT, "no context");
    assert_fails(attune_compile(context, NULL, NULL, &kernel), ATTUNE_INVALID_ARGUMENT, "no problem");
    attune_kernel_release(NULL);
    kernel = kernel_of(context, &c.problem);
    attune_kernel_release(kernel);
    attune_kernel_release(kernel);
    free_call(&c);
    attune_context_destroy(context);
    attune_context_destroy(NULL);
}

/* Rows that hold q, k, v and out one after the other: no two share an element, whatever their ranges. */
static void packed_rows_may_interleave(void **state) {
    (void)state;
    enum { BATCH = 2, HEADS = 3, SEQ = 7, DIM = 5, ROW = 4 * HEADS * DIM, COUNT = BATCH * SEQ * ROW };
    attune_context *context = open_default();
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    assert_ok(attune_problem_parse(&problem,
                                   "batch=2,num_heads=3,seq_q=7,head_dim=5,q_strides=420:5:60:1,k_strides=420:5:60:1,"
                                   "v_strides=420:5:60:1,out_strides=420:5:60:1"));
    float *packed = make_tensor(COUNT, 9), *before = make_tensor(COUNT, 9), *apart = make_tensor(COUNT, 8);
    attune_arguments a, b;
    attune_kernel *kernel = kernel_of(context, &problem);
    assert_ok(attune_arguments_init(&a, &problem));
    for (int place = 0; place < 4; place++) { /* of out among the four */
        const int width = HEADS * DIM;
        memcpy(packed, before, COUNT * sizeof *packed);
        a.out.data = packed + place * width;
        a.q.data = packed + (place + 1) % 4 * width;
        a.k.data = packed + (place + 2) % 4 * width;
        a.v.data = packed + (place + 3) % 4 * width;
        b = a;
        b.out.data = apart;
        assert_ok(attune_run(context, kernel, &b));
        assert_ok(attune_run(context, kernel, &a));
        for (int i = 0; i < COUNT; i++) {
            const int column = i % ROW - place * width;
            const bool written = column >= 0 && column < width;
            const float *expected = written ? apart + i - place * width : before + i;
            assert_memory_equal(&packed[i], expected, sizeof(float));
        }
        /* One column further is the next tensor's first, or the last of the one before. */
        b = a;
        b.out.data = (float *)a.out.data + 1;
        assert_fails(attune_run(context, kernel, &b), ATTUNE_INVALID_ARGUMENT, "the output out overlaps");
        if (place > 0) {
            b.out.data = (float *)a.out.data - 1;
            assert_fails(attune_run(context, kernel, &b), ATTUNE_INVALID_ARGUMENT, "the output out overlaps");
        }
    }
    /* The same pointers with rows of another length in k: columns that meet somewhere. */
    b = a;
    b.k.strides[2] = 59;
    assert_fails(attune_run(context, kernel, &b), ATTUNE_INVALID_ARGUMENT, "the output out overlaps k");
    attune_kernel_release(kernel);
    free(packed);
    free(before);
    free(apart);
    attune_context_destroy(context);
}

static void bad_options(void **state) {
    (void)state;
    attune_context *context;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.struct_size = 3;
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT, "struct_size is 3");
    assert_null(context);
    options = (attune_context_options)ATTUNE_CONTEXT_OPTIONS_INIT;
    options.isa = "pentium";
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT, "pentium");
    options = (attune_context_options)ATTUNE_CONTEXT_OPTIONS_INIT;
    options.max_workers = 70000;
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT, "max_workers is 70000");
    setenv("ATTUNE_COMPILE", "sometimes", 1);
    assert_fails(attune_context_create(NULL, &context), ATTUNE_INVALID_ARGUMENT, "sometimes");
    unsetenv("ATTUNE_COMPILE");
    assert_fails(attune_context_create(NULL, NULL), ATTUNE_INVALID_ARGUMENT, "NULL");
    for (int s = -1; s <= ATTUNE_STATUS_COUNT; s++) assert_non_null(attune_status_name((attune_status)s));
}

/* Code for a CPU that this one is not comes out, and its IR is interpreted, but it is never run. */
static void code_for_another_machine(void **state) {
    (void)state;
    attune_context *context;
    attune_kernel *kernel = NULL;
    void *object = NULL;
    size_t bytes = 0;
    call c = make_call(SMALL);
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
#if defined(__aarch64__)
    enum { MACHINE = EM_X86_64 };
    options.target = "avx2";
#else
    enum { MACHINE = EM_AARCH64 };
    options.target = "aarch64";
#endif
    context = open_with(options);
    assert_ok(attune_emit(context, &c.problem, NULL, ATTUNE_STAGE_OBJECT, &object, &bytes));
    assert_int_equal(((const Elf64_Ehdr *)object)->e_machine, MACHINE);
    attune_free(context, object);
    assert_ok(attune_run_interpreted(context, &c.problem, NULL, &c.arguments));
    assert_fails(attune_compile(context, &c.problem, NULL, &kernel), ATTUNE_UNSUPPORTED,
                 "features that this CPU lacks");
    assert_null(kernel);
    attune_context_destroy(context);
    free_call(&c);
    options.isa = "x86-64";
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT, "exclude each other");
    options.isa = NULL;
    options.target = "vax";
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT, "unknown ISA 'vax'; there are: ");
    options.target = NULL;
    options.isa = "vax";
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT, "unknown ISA 'vax'; there are: ");
    options.isa = NULL;
    char *const isa = getenv("ATTUNE_ISA") ? strdup(getenv("ATTUNE_ISA")) : NULL;
    setenv("ATTUNE_ISA", "vax", 1);
    assert_fails(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT,
                 "unknown ISA 'vax' in ATTUNE_ISA; there are: ");
    if (isa) setenv("ATTUNE_ISA", isa, 1);
    if (!isa) unsetenv("ATTUNE_ISA");
    free(isa);
}

/* Programs built with an older, shorter struct get their part and not a byte more. */
static void structs_may_grow(void **state) {
    (void)state;
    attune_context *context = open_default();
    attune_statistics statistics;
    memset(&statistics, 0x5a, sizeof statistics);
    statistics.struct_size = offsetof(attune_statistics, compiles);
    assert_ok(attune_get_statistics(context, &statistics));
    assert_int_equal(statistics.memory_hits, 0);
    assert_int_equal(statistics.compiles, UINT64_C(0x5a5a5a5a5a5a5a5a));
    statistics.struct_size = 0;
    assert_fails(attune_get_statistics(context, &statistics), ATTUNE_INVALID_ARGUMENT, "sizeof(attune_statistics)");
    attune_context_destroy(context);
}

/* ---- Threads ---- */

/* Hands out single tasks backwards, as worker 3, 2, 1, 0, 3, …: any order and any worker must give the same bits. */
static void odd_parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    for (int64_t i = n - 1; i >= 0; i--) fn(argument, i, i + 1, (uint32_t)(i % *(int *)user));
}

static void parallel_for_of_the_caller(void **state) {
    (void)state;
    int workers = 4;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const attune_runner runner = {
        .struct_size = sizeof runner, .parallel_for = odd_parallel_for, .user = &workers, .max_workers = 4};
    options.runner = &runner;
    attune_context *context = open_with(options);
    call c = make_call("batch=3,num_heads=5,seq_q=70,head_dim=16");
    attune_kernel *kernel = kernel_of(context, &c.problem);
    assert_ok(attune_run(context, kernel, &c.arguments));
    assert_right(context, &c);
    workers = 5; /* one more than promised */
    assert_fails(attune_run(context, kernel, &c.arguments), ATTUNE_INVALID_ARGUMENT,
                 "the runner passed worker 4; max_workers is 4");
    attune_kernel_release(kernel);
    free_call(&c);
    attune_context_destroy(context);
}

typedef struct runner {
    attune_context *context;
    const attune_kernel *kernel;
    call c;
    attune_status status;
} runner;

static void *run_often(void *argument) {
    runner *r = argument;
    for (int i = 0; i < 50 && r->status == ATTUNE_OK; i++)
        r->status = attune_run(r->context, r->kernel, &r->c.arguments);
    return NULL;
}

static void many_runs_at_once(void **state) {
    (void)state;
    enum { RUNNERS = 6 };
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.max_workers = 3;
    attune_context *context = open_with(options);
    attune_kernel *kernel;
    runner runners[RUNNERS];
    pthread_t threads[RUNNERS];
    for (int r = 0; r < RUNNERS; r++) {
        runners[r] = (runner){.context = context, .c = make_call("batch=3,num_heads=5,seq_q=70,head_dim=16")};
        kernel = kernel_of(context, &runners[r].c.problem);
        runners[r].kernel = kernel;
        assert_int_equal(pthread_create(&threads[r], NULL, run_often, &runners[r]), 0);
    }
    for (int r = 0; r < RUNNERS; r++) {
        pthread_join(threads[r], NULL);
        assert_int_equal(runners[r].status, ATTUNE_OK);
        assert_right(context, &runners[r].c);
        attune_kernel_release(kernel);
        free_call(&runners[r].c);
    }
    attune_context_destroy(context);
}

/* An engine's flush-to-zero flag must not change bits, and must still be set afterwards. */
static void flags_of_the_caller(void **state) {
    (void)state;
#if defined(__x86_64__)
    attune_context *context = open_default();
    call c = make_call(SMALL);
    for (size_t i = 0; i < c.out_count; i++) c.q[i] *= 1e-20f;
    for (size_t i = 0; i < 2 * 2 * 21 * 12; i++) {
        c.k[i] *= 1e-20f;
        c.v[i] *= 1e-39f;
    }
    attune_kernel *kernel = kernel_of(context, &c.problem);
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040 | 0x6000); /* flush to zero, denormals are zero, round towards zero */
    const attune_status status = attune_run(context, kernel, &c.arguments);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    assert_ok(status);
    assert_int_equal(after & 0xffc0, (saved | 0x8040 | 0x6000) & 0xffc0);
    assert_right(context, &c);
    int denormals = 0;
    for (size_t i = 0; i < c.out_count; i++) denormals += fpclassify(c.out[i]) == FP_SUBNORMAL;
    assert_true(denormals > 0);
    attune_kernel_release(kernel);
    free_call(&c);
    attune_context_destroy(context);
#endif
}

/* ---- Loop IR of the caller's own ---- */

static void kernels_in_loop_ir(void **state) {
    (void)state;
    static const char text[] =
        "kernel @scale (x: f32[n,16] in, o: f32[n,16] out, n: idx, f: f32) {\n"
        "  parallel for i in 0..n { for c in 0..16 by 8 { o[i,c]:x8 = x[i,c]:x8 * splat.x8(f) } }\n"
        "}\n";
    attune_context *context = open_default();
    attune_kernel *kernel;
    const attune_ir_parameter *parameters;
    size_t count, rank;
    int64_t dims[8];
    assert_ok(attune_ir_compile(context, text, &kernel));
    assert_ok(attune_ir_parameters(kernel, &parameters, &count));
    assert_int_equal(count, 4);
    assert_string_equal(parameters[1].name, "o");
    assert_true(parameters[1].is_output && !parameters[1].is_input);
    assert_string_equal(parameters[3].elem, "f32");
    const float f = 1.5f;
    int64_t scalars[2] = {3, 0};
    memcpy(&scalars[1], &f, sizeof f);
    assert_ok(attune_ir_shape(kernel, 0, scalars, dims, &rank));
    assert_int_equal(rank, 2);
    assert_int_equal(dims[0], 3);
    assert_int_equal(dims[1], 16);
    assert_fails(attune_ir_shape(kernel, 2, scalars, dims, &rank), ATTUNE_INVALID_ARGUMENT, "is not a buffer");
    _Alignas(64) float x[48], jit[48], interpreted[48];
    for (int i = 0; i < 48; i++) x[i] = (float)i;
    assert_ok(attune_ir_run(context, kernel, ATTUNE_ENGINE_JIT, (void *[]){x, jit}, scalars));
    assert_ok(attune_ir_run(context, kernel, ATTUNE_ENGINE_INTERPRETER, (void *[]){x, interpreted}, scalars));
    assert_memory_equal(jit, interpreted, sizeof jit);
    assert_true(jit[47] == 70.5f);
    assert_fails(attune_ir_run(context, kernel, ATTUNE_ENGINE_JIT, (void *[]){x, NULL}, scalars),
                 ATTUNE_INVALID_ARGUMENT, "pointer to o is NULL");
    assert_fails(attune_ir_run(context, kernel, (attune_engine)7, (void *[]){x, jit}, scalars), ATTUNE_INVALID_ARGUMENT,
                 "engine is 7");
    attune_arguments none = {.struct_size = sizeof none};
    assert_fails(attune_run(context, kernel, &none), ATTUNE_INVALID_ARGUMENT, "attune_ir_run");
    attune_kernel_release(kernel);
    /* Tasks that write one element race; the interpreter's order is not the one that hides it. */
    assert_ok(attune_ir_compile(
        context, "kernel @race (o: i64[1] out) { parallel for i in 0..64 { o[0] = cast.i64(i) } }", &kernel));
    int64_t last = 63;
    assert_ok(attune_ir_run(context, kernel, ATTUNE_ENGINE_INTERPRETER, (void *[]){&last}, NULL));
    assert_int_not_equal(last, 63);
    attune_kernel_release(kernel);
    assert_int_equal(attune_ir_compile(context, "kernel @broken (", &kernel), ATTUNE_INVALID_IR);
    attune_context_destroy(context);
}

/* Products of sizes that wrap to something small: an error from both engines, not a workspace that is too small. */
static void sizes_in_loop_ir_that_overflow(void **state) {
    (void)state;
    static const char shared[] = "kernel @shared (o: f32[1] out, n: idx, m: idx) {\n"
                                 "  assume n >= 1\n"
                                 "  assume m >= 1\n"
                                 "  alloc t: f32[n, m] shared\n"
                                 "  parallel for i in 0..1 { for r in 0..n { for c in 0..m { t[r, c] = 1.0 } } }\n"
                                 "  parallel for j in 0..1 { o[0] = t[n - 1, m - 1] }\n"
                                 "}\n";
    static const char tasks[] = "kernel @tasks (o: f32[1] out, n: idx, m: idx) {\n"
                                "  parallel for i in 0..n, j in 0..m { o[0] = 1.0 }\n"
                                "}\n";
    static const char *const texts[] = {shared, tasks}, *const says[] = {"the size of t", "the number of tasks"};
    const int64_t scalars[] = {INT64_C(1) << 32, INT64_C(1) << 32};
    attune_context *context = open_default();
    for (int i = 0; i < 2; i++) {
        attune_kernel *kernel;
        float o[1];
        assert_ok(attune_ir_compile(context, texts[i], &kernel));
        for (int engine = ATTUNE_ENGINE_JIT; engine <= ATTUNE_ENGINE_INTERPRETER; engine++)
            assert_fails(attune_ir_run(context, kernel, (attune_engine)engine, (void *[]){o}, scalars),
                         ATTUNE_INVALID_ARGUMENT, says[i]);
        attune_kernel_release(kernel);
    }
    attune_context_destroy(context);
}

static void each_stage_comes_out(void **state) {
    (void)state;
    attune_context *context = open_default();
    call c = make_call(SMALL);
    for (int stage = ATTUNE_STAGE_IR; stage <= ATTUNE_STAGE_IMAGE; stage++) {
        void *data;
        size_t bytes;
        assert_ok(attune_emit(context, &c.problem, NULL, (attune_stage)stage, &data, &bytes));
        assert_true(bytes > 100);
        if (stage <= ATTUNE_STAGE_ASM) assert_int_equal(strlen(data), bytes);
        attune_free(context, data);
    }
    void *data;
    size_t bytes;
    assert_fails(attune_emit(context, &c.problem, NULL, (attune_stage)99, &data, &bytes), ATTUNE_INVALID_ARGUMENT,
                 "99");
    free_call(&c);
    attune_context_destroy(context);
}

static void names_for_perf(void **state) {
    (void)state;
    char path[64], line[512];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    setenv("ATTUNE_PERF", "1", 1);
    attune_context *context = open_default();
    unsetenv("ATTUNE_PERF");
    compile_run_check(context, ATTUNE_ENGINE_JIT, ATTUNE_FROM_DISK);
    attune_context_destroy(context);
    FILE *map = fopen(path, "r");
    assert_non_null(map);
    unsigned long long begin, end = 0;
    unsigned bytes, helpers = 0, plans = 0;
    while (fgets(line, sizeof line, map)) {
        assert_int_equal(sscanf(line, "%llx %x attune:", &begin, &bytes), 2);
        assert_true(begin >= end && bytes > 0); /* no function lies in another */
        end = begin + bytes;
        helpers += strstr(line, ":helper") != NULL;
        plans += strstr(line, ":plan\n") != NULL;
    }
    assert_int_equal(plans, 1);
    assert_true(helpers > 0); /* functions that an entry calls have names of their own */
    fclose(map);
    unlink(path);
}

/* Opening a FIFO for writing waits for a reader, which may never come. */
static void a_fifo_in_the_place_of_the_perf_map(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    assert_int_equal(mkfifo(path, 0600), 0);
    setenv("ATTUNE_PERF", "1", 1);
    attune_context *context = open_default();
    unsetenv("ATTUNE_PERF");
    alarm(60); /* ends the test where it would hang */
    compile_run_check(context, ATTUNE_ENGINE_JIT, ATTUNE_FROM_DISK);
    alarm(0);
    attune_context_destroy(context);
    unlink(path);
}

static int make_cache(void **state) {
    (void)state;
    temp_dir_make(cache_dir);
    return 0;
}

static int remove_cache(void **state) {
    (void)state;
    temp_dir_remove(cache_dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_need_no_llvm),
        cmocka_unit_test(worker_survives_its_death),
        cmocka_unit_test(broken_workers),
        cmocka_unit_test(missing_plugin),
        cmocka_unit_test(kernels_are_shared),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(packed_rows_may_interleave),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(code_for_another_machine),
        cmocka_unit_test(structs_may_grow),
        cmocka_unit_test(parallel_for_of_the_caller),
        cmocka_unit_test(many_runs_at_once),
        cmocka_unit_test(flags_of_the_caller),
        cmocka_unit_test(kernels_in_loop_ir),
        cmocka_unit_test(sizes_in_loop_ir_that_overflow),
        cmocka_unit_test(each_stage_comes_out),
        cmocka_unit_test(names_for_perf),
        cmocka_unit_test(a_fifo_in_the_place_of_the_perf_map),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
