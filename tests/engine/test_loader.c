/* Executable memory: never writable and executable at once, both ways of getting it, and its refusal. */
#define _GNU_SOURCE
#include "engine/loader.h"
#include "support/engine/fake_codegen.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static _Alignas(64) uint8_t image[FAKE_IMAGE_BYTES];

static int refuse_mprotect(void *address, size_t bytes, int protection) {
    (void)address, (void)bytes, (void)protection;
    errno = EACCES;
    return -1;
}

static int refuse_memfd(const char *name, unsigned flags) {
    (void)name, (void)flags;
    errno = EPERM;
    return -1;
}

static void run_it(const at_code *code, uint32_t marker) {
    const at_image_header *header = (const void *)image;
    uint32_t out = 0;
    void *buffers[4] = {NULL, NULL, NULL, &out};
    int64_t tasks = 0;
    char *base = code->base;
    ((at_plan_fn *)(void *)(base + header->plan_entry))(NULL, &tasks);
    assert_int_equal(tasks, 1);
    ((at_phase_fn *)(void *)(base + at_image_phases(header)->entry))(buffers, NULL, 0, 1, NULL);
    assert_int_equal(out, marker);
}

/* The protection of the mapping that holds `address`, as in /proc/self/maps: "r-xp". */
static void protection_of(const void *address, char protection[5]) {
    char line[512];
    protection[0] = '\0';
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        char bits[5];
        if (sscanf(line, "%lx-%lx %4s", &begin, &end, bits) != 3) continue;
        if ((uintptr_t)address >= begin && (uintptr_t)address < end) strcpy(protection, bits);
        assert_false(strchr(bits, 'w') && strchr(bits, 'x'));
    }
    fclose(maps);
}

static void load_with(const at_io *io, const char *expected) {
    at_code code;
    at_error err = {0};
    char protection[5];
    fake_image(image, 4, 16, 0x12345678);
    assert_int_equal(at_code_load(io, (const at_image_header *)image, &code, &err), ATTUNE_OK);
    protection_of(code.base, protection);
    assert_string_equal(protection, expected);
    run_it(&code, 0x12345678);
    at_code_unload(&code);
    assert_null(code.base);
    at_code_unload(&code);
}

static void private_pages(void **state) {
    (void)state;
    load_with(at_default_io(), "r-xp");
}

static void memfd_where_mprotect_is_refused(void **state) {
    (void)state;
    at_io io = *at_default_io();
    io.mprotect = refuse_mprotect;
    load_with(&io, "r-xs");
}

enum { KNOWS_EXEC_FLAG = 0x0010 };
static unsigned memfd_flags[2];
static int memfd_calls;

static int old_memfd(const char *name, unsigned flags) {
    memfd_flags[memfd_calls++ % 2] = flags;
    if (!(flags & KNOWS_EXEC_FLAG)) return memfd_create(name, flags);
    errno = EINVAL;
    return -1;
}

static int recording_memfd(const char *name, unsigned flags) {
    memfd_flags[memfd_calls++ % 2] = flags;
    return memfd_create(name, flags & ~(unsigned)KNOWS_EXEC_FLAG);
}

static void memfd_says_that_it_is_executed(void **state) {
    (void)state;
    at_io io = *at_default_io();
    io.mprotect = refuse_mprotect;
    io.memfd_create = recording_memfd;
    memfd_calls = 0;
    load_with(&io, "r-xs");
    assert_int_equal(memfd_calls, 1);
    assert_int_equal(memfd_flags[0], MFD_CLOEXEC | KNOWS_EXEC_FLAG);
}

static void memfd_of_an_old_kernel(void **state) {
    (void)state;
    at_io io = *at_default_io();
    io.mprotect = refuse_mprotect;
    io.memfd_create = old_memfd;
    memfd_calls = 0;
    load_with(&io, "r-xs");
    assert_int_equal(memfd_calls, 2);
    assert_int_equal(memfd_flags[1], MFD_CLOEXEC);
}

/* ---- A system that forbids ---- */

#if defined(__x86_64__)
#define OWN_ARCH AUDIT_ARCH_X86_64
#else
#define OWN_ARCH AUDIT_ARCH_AARCH64
#endif

/* From now on this process may make no memory executable by mprotect, nor map any that is writable as well; or, with
 * `all`, none that is executable at all. false: the system does not let processes forbid themselves things. */
static bool forbid_execution(bool all) {
#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define PROTECTION   args[2] /* its lower half: both machines are little-endian */
    const unsigned refused_in_mmap = all ? PROT_EXEC : PROT_EXEC | PROT_WRITE;
    struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 0, 9),
        LOAD(nr),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mmap, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mprotect, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pkey_mprotect, 3, 5),
        LOAD(PROTECTION), /* of mmap */
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, refused_in_mmap),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused_in_mmap, 3, 2),
        LOAD(PROTECTION), /* of mprotect */
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

enum { WORKED, REFUSED, WRONG, NOT_FORBIDDEN, NO_SECCOMP };

/* In a child, where no assertion may jump out of the test. */
static int load_where_forbidden(bool all) {
    at_code code;
    at_error err = {0};
    fake_image(image, 4, 16, 0x2468ace0);
    if (!forbid_execution(all)) return NO_SECCOMP;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || !mprotect(page, 4096, PROT_READ | PROT_EXEC) || errno != EACCES) return NOT_FORBIDDEN;
    const int protection = PROT_READ | PROT_EXEC | (all ? 0 : PROT_WRITE);
    if (mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) return NOT_FORBIDDEN;
    const attune_status status = at_code_load(at_default_io(), (const at_image_header *)image, &code, &err);
    if (status) return status == ATTUNE_NO_EXEC_MEMORY && strstr(err.message, "Permission denied") ? REFUSED : WRONG;
    const at_image_header *header = (const void *)image;
    uint32_t out = 0;
    void *buffers[4] = {NULL, NULL, NULL, &out};
    ((at_phase_fn *)(void *)((char *)code.base + at_image_phases(header)->entry))(buffers, NULL, 0, 1, NULL);
    return out == 0x2468ace0 ? WORKED : WRONG;
}

static void expect_where_forbidden(bool all, int expected) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) _exit(load_where_forbidden(all));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_SECCOMP) {
        print_message("seccomp filters are not allowed here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), expected);
}

static void under_seccomp_without_mprotect(void **state) {
    (void)state;
    expect_where_forbidden(false, WORKED);
}

static void under_seccomp_without_any(void **state) {
    (void)state;
    expect_where_forbidden(true, REFUSED);
}

static void refused_altogether(void **state) {
    (void)state;
    at_io io = *at_default_io();
    io.mprotect = refuse_mprotect;
    io.memfd_create = refuse_memfd;
    at_code code;
    at_error err = {0};
    fake_image(image, 4, 16, 1);
    assert_int_equal(at_code_load(&io, (const at_image_header *)image, &code, &err), ATTUNE_NO_EXEC_MEMORY);
    assert_non_null(strstr(err.message, "executable memory: Operation not permitted"));
    assert_null(code.base);
}

/* A child keeps running a kernel that its parent has given back. */
static void survives_fork(void **state) {
    (void)state;
    at_code code;
    int pipe_fds[2];
    char byte = 0;
    fake_image(image, 4, 16, 77);
    assert_int_equal(at_code_load(at_default_io(), (const at_image_header *)image, &code, NULL), ATTUNE_OK);
    assert_int_equal(pipe(pipe_fds), 0);
    const pid_t child = fork();
    if (child == 0) {
        if (read(pipe_fds[0], &byte, 1) != 1) _exit(1);
        run_it(&code, 77);
        _exit(0);
    }
    at_code_unload(&code);
    assert_int_equal(write(pipe_fds[1], &byte, 1), 1);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(private_pages),
        cmocka_unit_test(memfd_where_mprotect_is_refused),
        cmocka_unit_test(memfd_says_that_it_is_executed),
        cmocka_unit_test(memfd_of_an_old_kernel),
        cmocka_unit_test(under_seccomp_without_mprotect),
        cmocka_unit_test(under_seccomp_without_any),
        cmocka_unit_test(refused_altogether),
        cmocka_unit_test(survives_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
