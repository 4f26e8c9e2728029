/* What hostile or clumsy users, other processes and hosts do to a cache directory: nothing hangs, nothing is lost, the
 * kernel still compiles, and the entry is there again afterwards. */
#define _GNU_SOURCE
#include "cache/cache_file_io.h"
#include "engine/create.h"
#include "support/engine/contexts.h"
#include "support/engine/fake_codegen.h"
#include "support/problems.h"
#include "support/statuses.h"
#include "support/temp_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL "num_heads=2,seq_q=4,head_dim=8"
#define OTHER "num_heads=2,seq_q=5,head_dim=8"

typedef char file_path[TEMP_DIR_CHARS + 2 * AT_FILE_CHARS];

static fake_codegen codegen;

static attune_context *open_with(const char *dir, const char *base, const at_io *io) {
    const at_context_hooks hooks = {.io = io, .compile = fake_compile, .compile_user = &codegen};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = dir;
    options.cache_base = base;
    options.log = keep_message;
    options.max_workers = 1;
    return test_context(&options, &hooks);
}

static attune_origin origin_in(attune_context *context, const char *text) {
    const attune_problem problem = problem_parsed(text);
    attune_kernel *kernel = kernel_of(context, &problem);
    const attune_kernel_info info = kernel_info_of(kernel);
    attune_kernel_release(kernel);
    attune_drop_memory_cache(context);
    return info.origin;
}

/* In a context of its own. */
static attune_origin origin_of(const char *dir, const at_io *io, const char *text) {
    attune_context *context = open_with(dir, "", io);
    const attune_origin origin = origin_in(context, text);
    attune_context_destroy(context);
    return origin;
}

/* The file that a problem's entry has. */
static void file_of(const char *dir, const char *text, file_path path) {
    attune_context *context = open_with(dir, "", NULL);
    const attune_problem problem = problem_canonical(text);
    at_key key;
    char name[AT_FILE_CHARS];
    at_key_make(&key, at_attention_of(&problem), NULL, &context->machine);
    at_file_name(&key, name);
    snprintf(path, sizeof(file_path), "%s/%s", dir, name);
    attune_context_destroy(context);
}

static void make_file(const char *path, off_t bytes) {
    const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    close(fd);
}

/* ---- In the place of an entry ---- */

typedef void plant_fn(const char *dir, const char *path);

static void another_entry(const char *dir, const char *path) {
    file_path other;
    assert_int_equal(origin_of(dir, NULL, OTHER), ATTUNE_FROM_COMPILER);
    file_of(dir, OTHER, other);
    assert_int_equal(rename(other, path), 0);
}

static void a_fifo(const char *dir, const char *path) {
    (void)dir;
    assert_int_equal(mkfifo(path, 0600), 0);
}

static void a_socket(const char *dir, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "s"};
    char before[PATH_MAX];
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(rename("s", path), 0);
    assert_int_equal(chdir(before), 0);
    close(fd);
}

static void a_dangling_link(const char *dir, const char *path) {
    (void)dir;
    assert_int_equal(symlink("/nowhere/at/all", path), 0);
}

static void a_link_to_itself(const char *dir, const char *path) {
    (void)dir;
    assert_int_equal(symlink(path, path), 0);
}

static void an_empty_directory(const char *dir, const char *path) {
    (void)dir;
    assert_int_equal(mkdir(path, 0700), 0);
}

static void a_full_directory(const char *dir, const char *path) {
    file_path inside;
    (void)dir;
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(inside, sizeof inside, "%s/precious", path);
    make_file(inside, 1);
}

static void an_empty_file(const char *dir, const char *path) {
    (void)dir;
    make_file(path, 0);
}

static void a_sparse_file(const char *dir, const char *path) {
    (void)dir;
    make_file(path, (off_t)1 << 40);
}

static void a_sparse_file_of_plausible_size(const char *dir, const char *path) {
    (void)dir;
    make_file(path, (off_t)AT_CACHE_FILE_MAX_BYTES);
}

static const struct {
    const char *name;
    plant_fn *plant;
} plants[] = {
    {"another entry", another_entry},
    {"a FIFO", a_fifo},
    {"a socket", a_socket},
    {"a dangling link", a_dangling_link},
    {"a link to itself", a_link_to_itself},
    {"an empty directory", an_empty_directory},
    {"a directory with a file", a_full_directory},
    {"an empty file", an_empty_file},
    {"a sparse file", a_sparse_file},
    {"a sparse file of plausible size", a_sparse_file_of_plausible_size},
};
enum { PLANTS = sizeof plants / sizeof *plants };

static int count_damaged(void *user, const attune_cache_file *entry) {
    int *counts = user;
    counts[entry->status != ATTUNE_OK]++;
    if (entry->status) assert_true(strlen(entry->message) > 5);
    return 0;
}

/* verify and export call the same files damaged. */
static void assert_one_damaged(const char *name, const char *dir) {
    char out[TEMP_DIR_CHARS];
    int counts[2] = {0};
    attune_cache_copied copied = {.struct_size = sizeof copied};
    attune_context *context = open_with(dir, "", NULL);
    temp_dir_make(out);
    assert_int_equal(attune_cache_visit(context, count_damaged, counts), ATTUNE_OK);
    assert_int_equal(attune_cache_export(context, out, &copied), ATTUNE_OK);
    attune_context_destroy(context);
    temp_dir_remove(out);
    if (counts[1] != 1 || copied.damaged != 1 || (uint64_t)counts[0] != copied.added)
        fail_msg("%s: verify finds %d damaged, export %d", name, counts[1], (int)copied.damaged);
}

static void each_heals(void **state) {
    for (int i = 0; i < PLANTS; i++) {
        file_path path, aside;
        file_of(*state, SMALL, path);
        plants[i].plant(*state, path);
        assert_one_damaged(plants[i].name, *state);
        if (origin_of(*state, NULL, SMALL) != ATTUNE_FROM_COMPILER) fail_msg("%s is a hit", plants[i].name);
        if (plants[i].plant == a_full_directory) assert_non_null(strstr(last_message, "was renamed to aside-"));
        if (origin_of(*state, NULL, SMALL) != ATTUNE_FROM_DISK) fail_msg("%s stays", plants[i].name);
        temp_dir_first(*state, "", aside);
        if (plants[i].plant == a_full_directory) {
            snprintf(aside, sizeof aside, "rm -r '%s'/aside-*/precious '%s'/aside-*", (char *)*state, (char *)*state);
            assert_int_equal(system(aside), 0); /* nothing was lost */
        }
        if (temp_dir_count(*state, "", "") != 1) fail_msg("%s: something stays beside the entry", plants[i].name);
        assert_int_equal(unlink(path), 0);
    }
}

/* Where one process finds the name taken after its miss. */
static void each_gives_way_to_an_entry(void **state) {
    attune_context *source = open_with(*state, "", NULL);
    assert_int_equal(origin_in(source, SMALL), ATTUNE_FROM_COMPILER);
    for (int i = 0; i < PLANTS; i++) {
        char out[TEMP_DIR_CHARS];
        file_path path;
        attune_cache_copied copied = {.struct_size = sizeof copied};
        temp_dir_make(out);
        file_of(out, SMALL, path);
        plants[i].plant(out, path);
        if (attune_cache_export(source, out, &copied)) fail_msg("%s: %s", plants[i].name, attune_last_message());
        if (copied.added != 1) fail_msg("%s is taken for an entry", plants[i].name);
        assert_int_equal(origin_of(out, NULL, SMALL), ATTUNE_FROM_DISK);
        snprintf(path, sizeof path, "rm -r '%s'", out);
        assert_int_equal(system(path), 0);
    }
    attune_context_destroy(source);
}

static int open_failure, read_failure;

static int failing_openat(int dir, const char *path, int flags, mode_t mode) {
    if (open_failure && strstr(path, ".attune") && !(flags & O_CREAT)) {
        errno = open_failure;
        return -1;
    }
    return at_default_io()->openat(dir, path, flags, mode);
}

static ssize_t failing_read(int fd, void *data, size_t bytes) {
    if (!read_failure) return at_default_io()->read(fd, data, bytes);
    errno = read_failure;
    return -1;
}

/* A file that cannot be read, by permissions or for an error of the disk, is told of and replaced. */
static void what_cannot_be_read_is_replaced(void **state) {
    for (int round = 0; round < 2; round++) {
        at_io io = *at_default_io();
        file_path path;
        struct stat before, after;
        io.openat = failing_openat;
        io.read = failing_read;
        assert_int_equal(origin_of(*state, NULL, SMALL), ATTUNE_FROM_COMPILER);
        file_of(*state, SMALL, path);
        assert_int_equal(stat(path, &before), 0);
        attune_context *context = open_with(*state, "", &io);
        open_failure = round == 0 ? EACCES : 0;
        read_failure = round == 1 ? EIO : 0;
        int counts[2] = {0};
        assert_int_equal(attune_cache_visit(context, count_damaged, counts), ATTUNE_OK);
        assert_int_equal(counts[1], 1);
        assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_COMPILER);
        if (!strstr(last_message, round ? "cannot be read: Input/output error" : "cannot be read: Permission denied"))
            fail_msg("%s", last_message);
        open_failure = read_failure = 0;
        assert_int_equal(stat(path, &after), 0);
        assert_int_not_equal(before.st_ino, after.st_ino);
        assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_DISK);
        attune_context_destroy(context);
        assert_int_equal(unlink(path), 0);
    }
}

/* Where the directory refuses everything, a file that is not there is not at fault. */
static void what_is_not_there_is_not_damaged(void **state) {
    static const int failures[] = {EACCES, EBADF, ESTALE, ENOTDIR};
    at_io io = *at_default_io();
    io.openat = failing_openat;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        attune_context *context = open_with(*state, "", &io);
        forget_messages();
        open_failure = failures[i];
        origin_in(context, SMALL);
        open_failure = 0;
        const attune_statistics s = statistics_of(context);
        attune_context_destroy(context);
        assert_string_equal(last_message, "");
        assert_int_equal(s.damaged_files, 0);
        file_path path;
        file_of(*state, SMALL, path);
        assert_int_equal(unlink(path), 0);
    }
}

/* For lack of descriptors: then the entry is good, and stays. */
static void what_cannot_be_read_now_stays(void **state) {
    at_io io = *at_default_io();
    file_path path;
    struct stat before, after;
    io.openat = failing_openat;
    assert_int_equal(origin_of(*state, NULL, SMALL), ATTUNE_FROM_COMPILER);
    file_of(*state, SMALL, path);
    assert_int_equal(stat(path, &before), 0);
    attune_context *context = open_with(*state, "", &io);
    open_failure = EMFILE;
    assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_COMPILER);
    open_failure = 0;
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    attune_context_destroy(context);
}

static int no_removal(int dir, const char *path, int flags) {
    (void)dir, (void)path, (void)flags;
    errno = EROFS;
    return -1;
}

static int only_reading(int dir, const char *path, int flags, mode_t mode) {
    if ((flags & O_ACCMODE) != O_RDONLY) {
        errno = EROFS;
        return -1;
    }
    return at_default_io()->openat(dir, path, flags, mode);
}

/* The kernel compiles wherever nothing can be put right. */
static void a_read_only_file_system(void **state) {
    for (int i = 0; i < PLANTS; i++) {
        at_io io = *at_default_io();
        file_path path;
        io.openat = only_reading;
        io.unlinkat = no_removal;
        file_of(*state, SMALL, path);
        plants[i].plant(*state, path);
        assert_int_equal(origin_of(*state, &io, SMALL), ATTUNE_FROM_COMPILER);
        assert_int_equal(origin_of(*state, NULL, SMALL), ATTUNE_FROM_COMPILER);
        snprintf(path, sizeof path, "rm -r '%s'/*", (char *)*state);
        assert_int_equal(system(path), 0);
    }
}

/* ---- The directory ---- */

static void move(const char *from, const char *to) { assert_int_equal(rename(from, to), 0); }

static void a_directory_that_was_removed_is_made_again(void **state) {
    char dir[TEMP_DIR_CHARS + 16];
    snprintf(dir, sizeof dir, "%s/cache", (char *)*state);
    attune_context *context = open_with(dir, "", NULL);
    assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_COMPILER);
    temp_dir_remove(dir);
    assert_int_equal(access(dir, F_OK), -1);
    forget_messages();
    assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_COMPILER);
    assert_string_equal(last_message, "");
    assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_DISK);
    assert_int_equal(temp_dir_count(dir, "", ".attune"), 1);
    attune_context_destroy(context);
    temp_dir_remove(dir);
}

/* Somebody warms a new directory and exchanges the two; the same for the base. */
static void a_directory_that_was_replaced_is_read(void **state) {
    for (int is_base = 0; is_base < 2; is_base++) {
        char dir[TEMP_DIR_CHARS + 16], old[TEMP_DIR_CHARS + 16], fresh[TEMP_DIR_CHARS + 16];
        snprintf(dir, sizeof dir, "%s/cache", (char *)*state);
        snprintf(old, sizeof old, "%s/old", (char *)*state);
        snprintf(fresh, sizeof fresh, "%s/new", (char *)*state);
        assert_int_equal(mkdir(dir, 0700), 0);
        setenv("ATTUNE_STRICT", "1", 1);
        attune_context *context = open_with(is_base ? "" : dir, is_base ? dir : "", NULL);
        unsetenv("ATTUNE_STRICT");
        const attune_problem problem = problem_parsed(SMALL);
        attune_kernel *kernel;
        assert_int_equal(attune_compile(context, &problem, NULL, &kernel), ATTUNE_NOT_CACHED);
        assert_int_equal(origin_of(fresh, NULL, SMALL), ATTUNE_FROM_COMPILER);
        move(dir, old);
        move(fresh, dir);
        assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_DISK);
        attune_context_destroy(context);
        temp_dir_remove(dir);
        temp_dir_remove(old);
    }
}

static bool is_path_out_of_reach;

static int openat_in_reach(int dir, const char *path, int flags, mode_t mode) {
    if (is_path_out_of_reach && *path == '/') return errno = EACCES, -1;
    return at_default_io()->openat(dir, path, flags, mode);
}

static int fstatat_in_reach(int dir, const char *path, struct stat *status, int flags) {
    if (is_path_out_of_reach && *path == '/') return errno = EACCES, -1;
    return at_default_io()->fstatat(dir, path, status, flags);
}

/* The host has moved to a jail, or to a user who cannot see the parents: the open directory works. */
static void a_directory_out_of_sight_is_used(void **state) {
    for (int is_jail = 0; is_jail < 2; is_jail++) {
        char dir[TEMP_DIR_CHARS + 16], moved[TEMP_DIR_CHARS + 16];
        at_io io = *at_default_io();
        io.openat = openat_in_reach;
        io.fstatat = fstatat_in_reach;
        snprintf(dir, sizeof dir, "%s/cache", (char *)*state);
        snprintf(moved, sizeof moved, "%s/moved", (char *)*state);
        attune_context *context = open_with(dir, "", &io);
        move(dir, moved); /* the path says ENOENT, as after a chroot */
        if (!is_jail) move(moved, dir);
        is_path_out_of_reach = !is_jail;
        forget_messages();
        assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_COMPILER);
        assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_DISK);
        is_path_out_of_reach = false;
        assert_string_equal(last_message, "");
        if (is_jail) assert_int_equal(access(dir, F_OK), -1);
        assert_int_equal(temp_dir_count(is_jail ? moved : dir, "", ".attune"), 1);
        attune_context_destroy(context);
        temp_dir_remove(is_jail ? moved : dir);
    }
}

static attune_context *clearing;
static char swapped_path[TEMP_DIR_CHARS + 16], swapped_old[TEMP_DIR_CHARS + 16], swapped_new[TEMP_DIR_CHARS + 16];

static int swapping_unlinkat(int dir, const char *path, int flags) {
    attune_context *const context = clearing;
    clearing = NULL;
    if (context) {
        move(swapped_path, swapped_old);
        move(swapped_new, swapped_path);
        assert_int_equal(origin_in(context, "num_heads=2,seq_q=6,head_dim=8"), ATTUNE_FROM_COMPILER);
    }
    return at_default_io()->unlinkat(dir, path, flags);
}

/* Another thread's miss finds a new directory while the old one is cleared. */
static void a_directory_that_is_replaced_in_a_walk(void **state) {
    at_io io = *at_default_io();
    uint64_t removed;
    io.unlinkat = swapping_unlinkat;
    snprintf(swapped_path, sizeof swapped_path, "%s/cache", (char *)*state);
    snprintf(swapped_old, sizeof swapped_old, "%s/old", (char *)*state);
    snprintf(swapped_new, sizeof swapped_new, "%s/new", (char *)*state);
    const char *const dirs[] = {swapped_path, swapped_new}, *const texts[] = {SMALL, OTHER};
    for (int i = 0; i < 4; i++) assert_int_equal(origin_of(dirs[i / 2], NULL, texts[i % 2]), ATTUNE_FROM_COMPILER);
    attune_context *context = clearing = open_with(swapped_path, "", &io);
    assert_int_equal(attune_cache_clear(context, &removed), ATTUNE_OK);
    attune_context_destroy(context);
    assert_int_equal(removed, 2);
    assert_int_equal(temp_dir_count(swapped_old, "", ".attune"), 0);
    assert_int_equal(temp_dir_count(swapped_path, "", ".attune"), 3);
    temp_dir_remove(swapped_old);
    temp_dir_remove(swapped_path);
}

/* What took its place must be trusted as much. */
static void a_directory_that_others_can_write_does_not_take_its_place(void **state) {
    char dir[TEMP_DIR_CHARS + 16];
    snprintf(dir, sizeof dir, "%s/cache", (char *)*state);
    attune_context *context = open_with(dir, "", NULL);
    temp_dir_remove(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(chmod(dir, 0777), 0);
    assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_COMPILER);
    assert_non_null(strstr(last_message, "can be written by others"));
    assert_int_equal(temp_dir_count(dir, "", ""), 0);
    attune_context_destroy(context);
    temp_dir_remove(dir);
}

/* A host that changes its working directory. */
static void a_relative_path_stays_where_it_was(void **state) {
    char before[PATH_MAX], dir[TEMP_DIR_CHARS + 16], there[TEMP_DIR_CHARS + 16];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(*state), 0);
    attune_context *context = open_with("cache", "", NULL);
    snprintf(dir, sizeof dir, "%s/cache", (char *)*state);
    snprintf(there, sizeof there, "%s/there", (char *)*state);
    assert_int_equal(mkdir(there, 0700), 0);
    assert_int_equal(chdir(there), 0);
    temp_dir_remove(dir);
    assert_int_equal(origin_in(context, SMALL), ATTUNE_FROM_COMPILER);
    assert_int_equal(temp_dir_count(dir, "", ".attune"), 1);
    assert_int_equal(temp_dir_count(there, "", ""), 0);
    assert_int_equal(chdir(before), 0);
    attune_context_destroy(context);
    temp_dir_remove(dir);
    temp_dir_remove(there);
}

/* A host without a log learns of a mistyped name. */
static void a_directory_that_is_not_used_is_told(void **state) {
    char missing[TEMP_DIR_CHARS + 16];
    snprintf(missing, sizeof missing, "%s/none", (char *)*state);
    attune_context *context = open_with("/dev/null", missing, NULL);
    attune_machine_info info = {.struct_size = sizeof info};
    assert_int_equal(attune_get_machine_info(context, &info), ATTUNE_OK);
    assert_non_null(strstr(info.cache_refusal, "/dev/null cannot be opened"));
    assert_non_null(strstr(info.cache_base_refusal, "none cannot be opened: No such file"));
    attune_context_destroy(context);
    context = open_with("", "", NULL);
    assert_int_equal(attune_get_machine_info(context, &info), ATTUNE_OK);
    assert_string_equal(info.cache_refusal, "");
    assert_string_equal(info.cache_base_refusal, "");
    attune_context_destroy(context);
}

/* ---- Two containers ---- */

static ssize_t write_slowly(int fd, const void *data, size_t bytes) {
    usleep(500);
    return at_default_io()->write(fd, data, bytes > 200 ? 200 : bytes);
}

enum { ENTRIES = 40 };

static int write_entries(const char *dir, int heads) {
    at_io io = *at_default_io();
    io.openat = no_tmpfile;
    io.write = write_slowly;
    attune_context *context = open_with(dir, "", &io);
    for (int i = 1; i <= ENTRIES; i++) {
        char text[64];
        snprintf(text, sizeof text, "num_heads=1,seq_q=%d,head_dim=%d", i, heads);
        if (origin_in(context, text) != ATTUNE_FROM_COMPILER) return 1;
    }
    const attune_statistics s = statistics_of(context);
    attune_context_destroy(context);
    return s.disk_write_failures ? 2 : 0;
}

/* A child in a process namespace of its own, where its number is 1; -1 where that is not allowed. */
static pid_t fork_into_namespace(const char *dir, int heads) {
    const pid_t outer = fork();
    if (outer) return outer;
    if (unshare(CLONE_NEWPID)) _exit(77);
    const pid_t inner = fork();
    if (inner == 0) _exit(getpid() == 1 ? write_entries(dir, heads) : 3);
    int status;
    _exit(waitpid(inner, &status, 0) == inner && WIFEXITED(status) ? WEXITSTATUS(status) : 4);
}

static void two_processes_of_one_number(void **state) {
    int status[2];
    pid_t children[2];
    for (int i = 0; i < 2; i++) children[i] = fork_into_namespace(*state, 8 + 8 * i);
    for (int i = 0; i < 2; i++) assert_int_equal(waitpid(children[i], &status[i], 0), children[i]);
    if (WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == 77) {
        print_message("no process namespaces here: skipped\n");
        skip();
    }
    for (int i = 0; i < 2; i++) assert_int_equal(status[i], 0);
    int counts[2] = {0};
    attune_context *context = open_with(*state, "", NULL);
    assert_int_equal(attune_cache_visit(context, count_damaged, counts), ATTUNE_OK);
    attune_context_destroy(context);
    assert_int_equal(counts[0], 2 * ENTRIES);
    assert_int_equal(counts[1], 0);
    assert_int_equal(temp_dir_count(*state, "tmp-", ""), 0);
}

/* ---- The host ---- */

/* Runs in a child, whose exit status is what `body` returns; a signal fails the test. */
static void assert_child(int (*body)(const char *dir), const char *dir) {
    int status;
    const pid_t child = fork();
    if (child == 0) _exit(body(dir));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) fail_msg("the host died of signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* What the host prints must not get into our files. */
static int without_stdio(const char *dir) {
    int pair[2];
    for (int fd = 0; fd < 3; fd++) close(fd);
    const at_io *const io = at_default_io();
    if (io->socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) || pair[0] < 3 || pair[1] < 3) return 10;
    if (io->memfd_create("x", 1) < 3 || io->openat(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0) < 3) return 11;
    attune_context *context = open_with(dir, dir, NULL);
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) >= 0) return 12;
    if (origin_in(context, SMALL) != ATTUNE_FROM_COMPILER || origin_in(context, SMALL) != ATTUNE_FROM_DISK) return 13;
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) >= 0) return 14;
    if (!(fcntl(context->disk.dir, F_GETFD) & FD_CLOEXEC)) return 15;
    attune_context_destroy(context);
    return 0;
}

static void a_host_without_stdio(void **state) { assert_child(without_stdio, *state); }

enum { HOST_FILES = 40 };

/* A daemon closes everything, and opens files of its own: each must stay the daemon's, open and untouched. */
static int closes_all(const char *dir, bool is_range, bool has_directories) {
    file_path cache, base, own;
    struct stat before[HOST_FILES], after;
    int fds[HOST_FILES];
    snprintf(cache, sizeof cache, "%s/cache", dir);
    snprintf(base, sizeof base, "%s/base", dir);
    snprintf(own, sizeof own, "%s/own", dir);
    if (mkdir(base, 0700) || mkdir(own, 0700)) return 10;
    attune_context *context = open_with(cache, base, NULL);
    if (origin_in(context, SMALL) != ATTUNE_FROM_COMPILER) return 11;
    if (is_range)
        close_range(3, ~0U, 0);
    else
        closefrom(3);
    for (int i = 0; i < HOST_FILES; i++) {
        fds[i] = has_directories ? open(own, O_RDONLY | O_DIRECTORY) : open(dir, O_TMPFILE | O_RDWR, 0600);
        if (fds[i] != 3 + i || fstat(fds[i], &before[i])) return 12;
    }
    forget_messages();
    /* The directory's path names another one now. */
    temp_dir_remove(cache);
    if (mkdir(cache, 0700)) return 13;
    if (origin_in(context, SMALL) != ATTUNE_FROM_COMPILER || origin_in(context, OTHER) != ATTUNE_FROM_COMPILER)
        return 14;
    if (!strstr(last_message, "has closed its descriptor")) return 15;
    attune_context_destroy(context);
    for (int i = 0; i < HOST_FILES; i++)
        if (fstat(fds[i], &after) || after.st_ino != before[i].st_ino || after.st_size != before[i].st_size) return 16;
    return temp_dir_count(own, "", "") ? 17 : 0;
}

static int with_closefrom(const char *dir) { return closes_all(dir, false, false); }
static int with_close_range(const char *dir) { return closes_all(dir, true, false); }
static int with_directories_of_its_own(const char *dir) { return closes_all(dir, true, true); }

static void a_host_that_closes_all(void **state) {
    int (*const bodies[])(const char *dir) = {with_closefrom, with_close_range, with_directories_of_its_own};
    for (int i = 0; i < 3; i++) {
        file_path command;
        assert_child(bodies[i], *state);
        snprintf(command, sizeof command, "rm -r '%s'/*", (char *)*state);
        assert_int_equal(system(command), 0);
    }
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit = {bytes, RLIM_INFINITY};
    if (getrlimit(RLIMIT_FSIZE, &limit)) _exit(20);
    limit.rlim_cur = bytes;
    if (setrlimit(RLIMIT_FSIZE, &limit)) _exit(20);
}

static int no_execution(void *address, size_t bytes, int protection) {
    (void)address, (void)bytes, (void)protection;
    errno = EACCES;
    return -1;
}

static int with_a_file_limit(const char *dir) {
    signal(SIGXFSZ, SIG_DFL);
    file_path record;
    snprintf(record, sizeof record, "%s/record", dir);
    setenv("ATTUNE_RECORD", record, 1);
    attune_context *context = open_with(dir, "", NULL);
    limit_files(100); /* some of an entry */
    if (origin_in(context, SMALL) != ATTUNE_FROM_COMPILER) return 21;
    limit_files(0);
    if (origin_in(context, SMALL) != ATTUNE_FROM_COMPILER) return 22;
    attune_context_destroy(context);
    at_io io = *at_default_io(); /* executable memory by a file that is too large then */
    io.mprotect = no_execution;
    context = open_with(dir, "", &io);
    if (origin_in(context, SMALL) != ATTUNE_FROM_VM) return 23; /* which needs no executable memory */
    attune_context_destroy(context);
    return temp_dir_count(dir, "", ".attune") || temp_dir_count(dir, "tmp-", "") ? 24 : 0;
}

static void a_host_with_a_file_limit(void **state) { assert_child(with_a_file_limit, *state); }

/* One that was sent by somebody else stays pending, and the mask is as it was. */
static int with_a_pending_signal(const char *dir) {
    sigset_t set, now;
    file_path path;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGXFSZ);
    snprintf(path, sizeof path, "%s/file", dir);
    const int fd = open(path, O_CREAT | O_WRONLY, 0600);
    limit_files(0);
    if (at_default_io()->write(fd, "x", 1) != -1 || errno != EFBIG) return 30;
    sigpending(&now);
    if (!sigismember(&now, SIGXFSZ)) return 31;
    sigprocmask(SIG_BLOCK, NULL, &now);
    return sigismember(&now, SIGXFSZ) && !sigismember(&now, SIGPIPE) ? 0 : 32;
}

static void a_pending_signal_stays(void **state) { assert_child(with_a_pending_signal, *state); }

/* A FIFO that nobody reads, and one whose reader has gone. */
static int with_a_fifo_as_record(const char *dir) {
    file_path record;
    alarm(20);
    signal(SIGPIPE, SIG_DFL);
    snprintf(record, sizeof record, "%s/record", dir);
    if (mkfifo(record, 0600)) return 40;
    setenv("ATTUNE_RECORD", record, 1);
    attune_context *context = open_with("", "", NULL);
    if (origin_in(context, SMALL) != ATTUNE_FROM_COMPILER) return 41;
    attune_context_destroy(context);
    if (!strstr(last_message, "could not be recorded")) return 42;
    int ends[2];
    if (pipe(ends) || close(ends[0])) return 43;
    return at_default_io()->write(ends[1], "x", 1) == -1 && errno == EPIPE ? 0 : 44;
}

static void a_fifo_as_record(void **state) { assert_child(with_a_fifo_as_record, *state); }

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, temp_dir_setup, temp_dir_teardown)
    const struct CMUnitTest tests[] = {
        CASE(two_processes_of_one_number), /* those that fork first: there are no threads yet */
        CASE(a_host_without_stdio),
        CASE(a_host_that_closes_all),
        CASE(a_host_with_a_file_limit),
        CASE(a_pending_signal_stays),
        CASE(a_fifo_as_record),
        CASE(each_heals),
        CASE(each_gives_way_to_an_entry),
        CASE(what_cannot_be_read_is_replaced),
        CASE(what_is_not_there_is_not_damaged),
        CASE(what_cannot_be_read_now_stays),
        CASE(a_read_only_file_system),
        CASE(a_directory_that_was_removed_is_made_again),
        CASE(a_directory_that_was_replaced_is_read),
        CASE(a_directory_out_of_sight_is_used),
        CASE(a_directory_that_is_replaced_in_a_walk),
        CASE(a_directory_that_others_can_write_does_not_take_its_place),
        CASE(a_relative_path_stays_where_it_was),
        CASE(a_directory_that_is_not_used_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
