/* Executable memory: never writable and executable at once, both ways of getting it, and its refusal. */
#include "runtime/loader.h"
#include "support/fake_codegen.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
        cmocka_unit_test(refused_altogether),
        cmocka_unit_test(survives_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
