/* Cache entries and the directory they live in: format, damage, trust, eviction, failing writes. */
#define _GNU_SOURCE
#include "cache/cache_dir.h"
#include "cache/disk_cache.h"
#include "cache/disk_files.h"
#include "engine/tuned.h"
#include "support/engine/contexts.h"
#include "support/engine/fake_codegen.h"
#include "support/temp_dir.h"
#include "target/kernel_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static _Alignas(64) uint8_t image[FAKE_IMAGE_BYTES];
static size_t image_bytes;

static void count_message(void *user, attune_log_level level, const char *message) {
    (void)user, (void)level;
    assert_true(strlen(message) > 10);
    snprintf(last_message, sizeof last_message, "%s", message);
    messages++;
}

static const at_log counting = {.fn = count_message};

/* Features of every CPU that this program runs on. */
#if defined(__aarch64__)
enum { HERE = AT_CPU_AARCH64 };
#else
enum { HERE = AT_CPU_X86_64 };
#endif

static void set_required(uint32_t required) {
    memcpy(image + offsetof(at_image_header, required), &required, sizeof required);
}

/* One of many whose writing does not sweep. */
static at_key key_of(uint32_t number) {
    at_machine machine;
    at_key key;
    attune_problem problem = ATTUNE_PROBLEM_INIT, canonical;
    problem.seq_q = problem.seq_kv = number + 1;
    at_machine_init(&machine, at_target_find("avx2"), "zen4");
    do {
        problem.head_dim += 8;
        assert_int_equal(mha_canonicalize(&problem, &canonical, NULL), ATTUNE_OK);
        at_key_make(&key, at_attention_of(&canonical), NULL, &machine);
    } while (key.low % 16 == 0);
    return key;
}

static at_cache_file entry_of(const at_key *key) {
    return (at_cache_file){.required = HERE,
                           .key = key->bytes,
                           .key_bytes = key->size,
                           .problem = "seq_q=1",
                           .schedule = "lanes=8",
                           .isa = "avx2",
                           .image = image,
                           .image_bytes = image_bytes};
}

/* ---- Format ---- */

static void encode(uint8_t **data, size_t *bytes) {
    const at_key key = key_of(3);
    const at_cache_file entry = entry_of(&key);
    assert_int_equal(at_cache_file_encode(&entry, NULL, data, bytes, NULL), ATTUNE_OK);
}

static void an_entry_comes_back(void **state) {
    (void)state;
    uint8_t *data;
    size_t bytes;
    at_cache_file got;
    const at_key key = key_of(3);
    encode(&data, &bytes);
    assert_null(at_cache_file_decode(data, bytes, &got));
    assert_int_equal(got.required, HERE);
    assert_int_equal(got.key_bytes, key.size);
    assert_memory_equal(got.key, key.bytes, key.size);
    assert_string_equal(got.problem, "seq_q=1");
    assert_string_equal(got.schedule, "lanes=8");
    assert_string_equal(got.isa, "avx2");
    assert_int_equal(got.image_bytes, image_bytes);
    assert_memory_equal(got.image, image, image_bytes);
    at_free(NULL, data);
}

/* Entries without loop IR stay as they were before there was any. */
static void loop_ir_has_a_format_version(void **state) {
    (void)state;
    const at_key key = key_of(3);
    at_cache_file entry = entry_of(&key), got;
    for (uint8_t version = 1; version <= 2; version++) {
        uint8_t *data;
        size_t bytes;
        entry.ir = version == 2 ? "kernel @k" : NULL;
        assert_int_equal(at_cache_file_encode(&entry, NULL, &data, &bytes, NULL), ATTUNE_OK);
        assert_int_equal(data[8], version);
        assert_null(at_cache_file_decode(data, bytes, &got));
        assert_int_equal(got.ir != NULL, version == 2);
        data[8] = 3;
        assert_string_equal(at_cache_file_decode(data, bytes, &got), "the cache file is of another format version");
        at_free(NULL, data);
    }
}

/* Kernels of linear attention with the most heads have loop IR of almost 5 MB. */
static void loop_ir_may_be_long(void **state) {
    (void)state;
    const at_key key = key_of(3);
    at_cache_file entry = entry_of(&key), got;
    uint8_t *data;
    size_t bytes;
    const size_t length = 5 << 20;
    char *const ir = malloc(length + 1);
    assert_non_null(ir);
    memset(ir, ' ', length);
    ir[length] = '\0';
    entry.ir = ir;
    assert_int_equal(at_cache_file_encode(&entry, NULL, &data, &bytes, NULL), ATTUNE_OK);
    assert_null(at_cache_file_decode(data, bytes, &got));
    assert_string_equal(got.ir, ir);
    at_free(NULL, data);
    free(ir);
}

static void each_flipped_bit_is_noticed(void **state) {
    (void)state;
    uint8_t *data;
    size_t bytes;
    at_cache_file got;
    encode(&data, &bytes);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_non_null(at_cache_file_decode(data, bytes, &got));
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_null(at_cache_file_decode(data, bytes, &got));
    at_free(NULL, data);
}

static void each_truncation_is_noticed(void **state) {
    (void)state;
    uint8_t *data;
    size_t bytes;
    at_cache_file got;
    encode(&data, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        uint8_t *part = aligned_alloc(64, (n + 64) / 64 * 64);
        memcpy(part, data, n);
        assert_non_null(at_cache_file_decode(part, n, &got));
        free(part);
    }
    at_free(NULL, data);
}

/* ---- Directory ---- */

static void open_cache(at_disk_cache *cache, const char *dir, uint64_t capacity, const at_io *io) {
    messages = 0;
    at_disk_cache_init(cache, dir, capacity, at_default_allocator(), io, &counting);
}

static bool reads_back(at_disk_cache *cache, uint32_t number) {
    const at_key key = key_of(number);
    uint8_t *data;
    at_cache_file entry;
    if (!at_disk_cache_read(cache, &key, &data, &entry)) return false;
    assert_memory_equal(entry.image, image, image_bytes);
    at_free(NULL, data);
    return true;
}

static void write_one(at_disk_cache *cache, uint32_t number) {
    const at_key key = key_of(number);
    const at_cache_file entry = entry_of(&key);
    at_disk_cache_write(cache, &key, &entry);
}

static void an_entry_is_found_again(void **state) {
    at_disk_cache cache;
    open_cache(&cache, *state, 1 << 20, at_default_io());
    assert_false(reads_back(&cache, 1));
    write_one(&cache, 1);
    assert_true(reads_back(&cache, 1));
    assert_false(reads_back(&cache, 2));
    assert_int_equal(temp_dir_count(*state, "", ""), 1);
    at_disk_cache_free(&cache);
    assert_int_equal(messages, 0);
}

static void without_unnamed_files(void **state) {
    at_disk_cache cache;
    at_io io = *at_default_io();
    io.openat = no_tmpfile;
    open_cache(&cache, *state, 1 << 20, &io);
    char file[TEMP_DIR_CHARS];
    struct stat first, second;
    write_one(&cache, 1);
    temp_dir_first(*state, ".attune", file);
    assert_int_equal(stat(file, &first), 0);
    write_one(&cache, 1); /* the first one stays */
    assert_int_equal(stat(file, &second), 0);
    assert_int_equal(first.st_ino, second.st_ino);
    assert_true(reads_back(&cache, 1));
    assert_int_equal(temp_dir_count(*state, "", ""), 1);
    at_disk_cache_free(&cache);
}

/* Another container's process may have our number, and be writing. */
static void temporary_files_of_others_stay(void **state) {
    enum { OTHERS = 64 };
    at_disk_cache cache;
    at_io io = *at_default_io();
    char file[TEMP_DIR_CHARS + 64];
    io.openat = no_tmpfile;
    open_cache(&cache, *state, 1 << 20, &io);
    for (int i = 0; i < OTHERS; i++) {
        snprintf(file, sizeof file, "%s/tmp-%ld-%d", (char *)*state, (long)getpid(), i);
        close(open(file, O_CREAT | O_EXCL | O_WRONLY, 0600));
    }
    write_one(&cache, 1);
    assert_true(reads_back(&cache, 1));
    assert_int_equal(temp_dir_count(*state, "tmp-", ""), OTHERS);
    assert_int_equal(at_disk_cache_clear(&cache, &(uint64_t){0}, NULL), ATTUNE_OK);
    assert_int_equal(temp_dir_count(*state, "tmp-", ""), OTHERS);
    at_disk_cache_free(&cache);
}

static int no_links(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    (void)from_dir, (void)from, (void)to_dir, (void)to, (void)flags;
    errno = EPERM;
    return -1;
}

static void without_hard_links(void **state) {
    at_disk_cache cache;
    at_io io = *at_default_io();
    io.linkat = no_links;
    open_cache(&cache, *state, 1 << 20, &io);
    write_one(&cache, 1);
    write_one(&cache, 1);
    assert_true(reads_back(&cache, 1));
    assert_int_equal(temp_dir_count(*state, "", ""), 1);
    at_disk_cache_free(&cache);
    assert_int_equal(messages, 0);
}

static void the_directory_is_made(void **state) {
    char path[TEMP_DIR_CHARS + 16], parent[TEMP_DIR_CHARS + 16];
    struct stat status;
    at_disk_cache cache;
    snprintf(parent, sizeof parent, "%s/a", (char *)*state);
    snprintf(path, sizeof path, "%s/a/b", (char *)*state);
    open_cache(&cache, path, 1 << 20, at_default_io());
    assert_string_equal(cache.path, path);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0700);
    at_disk_cache_free(&cache);
    rmdir(path);
    rmdir(parent);
}

static void assert_off(const char *path) {
    at_disk_cache cache;
    open_cache(&cache, path, 1 << 20, at_default_io());
    assert_string_equal(cache.path, "");
    assert_int_equal(messages, 1);
    write_one(&cache, 1);
    assert_false(reads_back(&cache, 1));
    at_disk_cache_free(&cache);
}

static bool is_on(const char *path) {
    at_disk_cache cache;
    open_cache(&cache, path, 1 << 20, at_default_io());
    write_one(&cache, 1);
    const bool on = reads_back(&cache, 1);
    at_disk_cache_free(&cache);
    return on;
}

static void a_link_to_an_own_directory_is_followed(void **state) {
    char link_path[2][TEMP_DIR_CHARS + 32], target[TEMP_DIR_CHARS + 16], again[TEMP_DIR_CHARS + 48];
    snprintf(target, sizeof target, "%s/b", (char *)*state);
    for (int i = 0; i < 2; i++) snprintf(link_path[i], sizeof link_path[i], "%s.link%d", (char *)*state, i);
    assert_int_equal(symlink(target, link_path[0]), 0);                         /* what it names is made */
    assert_int_equal(symlink(strrchr(link_path[0], '/') + 1, link_path[1]), 0); /* relative, to a link */
    assert_true(is_on(link_path[1]));
    assert_true(is_on(link_path[0]));
    snprintf(again, sizeof again, "%s//", link_path[0]);
    assert_true(is_on(again));
    assert_int_equal(temp_dir_count(target, "", ".attune"), 1);
    /* Links on the way, after which `..` is the parent of what they lead to. */
    snprintf(again, sizeof again, "%s/below", link_path[1]);
    assert_true(is_on(again));
    snprintf(again, sizeof again, "%s/../b/.//below", link_path[1]);
    assert_true(is_on(again));
    snprintf(again, sizeof again, "%s/below", target);
    assert_int_equal(temp_dir_count(again, "", ".attune"), 1);
    temp_dir_remove(again);
    unlink(link_path[0]);
    unlink(link_path[1]);
    temp_dir_remove(target);
}

/* It is not the working directory. */
static void an_empty_path_is_no_directory(void **state) {
    at_error err = {0};
    (void)state;
    assert_int_equal(at_cache_dir_open_shared("", at_default_io(), &err), -1);
    assert_non_null(strstr(err.message, "cannot be opened: No such file"));
}

/* Whoever can swap directories above it could lead SQLite elsewhere after the links were looked at. */
static void results_lie_in_the_directory_that_was_opened(void **state) {
    at_disk_cache cache;
    at_tuning tuning;
    open_cache(&cache, *state, 1 << 20, at_default_io());
    at_tuning_init(&tuning, &cache, at_default_allocator());
    assert_non_null(strstr(tuning.own.path, "/tuning.db"));
    at_tuning_free(&tuning);
    const ino_t right = cache.opened[0].st_ino;
    cache.opened[0].st_ino++;
    at_tuning_init(&tuning, &cache, at_default_allocator());
    assert_string_equal(tuning.own.path, "");
    at_tuning_free(&tuning);
    cache.opened[0].st_ino = right;
    at_disk_cache_free(&cache);
}

/* As if somebody else had made the link. */
static int link_of_another(int fd, struct stat *status) {
    const int result = at_default_io()->fstat(fd, status);
    if (S_ISLNK(status->st_mode)) status->st_uid = geteuid() + 1;
    return result;
}

static void a_link_of_another_user_is_not_followed(void **state) {
    char link_path[TEMP_DIR_CHARS + 16], again[TEMP_DIR_CHARS + 20], inside[2][TEMP_DIR_CHARS + 32];
    at_disk_cache cache;
    at_io io = *at_default_io();
    io.fstat = link_of_another;
    snprintf(link_path, sizeof link_path, "%s.link", (char *)*state);
    snprintf(again, sizeof again, "%s/", link_path);
    snprintf(inside[0], sizeof inside[0], "%s/below", link_path);
    snprintf(inside[1], sizeof inside[1], "%s/../below", link_path);
    assert_int_equal(symlink(*state, link_path), 0);
    const char *const paths[] = {link_path, again, inside[0], inside[1]};
    for (int i = 0; i < 4; i++) {
        open_cache(&cache, paths[i], 1 << 20, &io);
        assert_string_equal(cache.path, "");
        if (!strstr(last_message, "is a symbolic link of user")) fail_msg("%s", last_message);
        assert_non_null(strstr(cache.refusals[0], "is a symbolic link of user"));
        at_disk_cache_free(&cache);
    }
    unlink(link_path);
}

static int interruptions;

static int interrupted_openat(int dir, const char *path, int flags, mode_t mode) {
    if (interruptions-- > 0) {
        errno = EINTR;
        return -1;
    }
    return at_default_io()->openat(dir, path, flags, mode);
}

static int interrupted_fstat(int fd, struct stat *status) {
    if (interruptions-- > 0) {
        errno = EINTR;
        return -1;
    }
    return at_default_io()->fstat(fd, status);
}

static int interrupted_mkdir(const char *path, mode_t mode) {
    if (interruptions-- > 0) {
        errno = EINTR;
        return -1;
    }
    return at_default_io()->mkdir(path, mode);
}

static void a_signal_does_not_switch_it_off(void **state) {
    char path[TEMP_DIR_CHARS + 16];
    snprintf(path, sizeof path, "%s/b", (char *)*state);
    for (int round = 0; round < 3; round++) {
        at_disk_cache cache;
        at_io io = *at_default_io();
        if (round == 0) io.openat = interrupted_openat;
        if (round == 1) io.fstat = interrupted_fstat;
        if (round == 2) io.mkdir = interrupted_mkdir;
        interruptions = 3;
        open_cache(&cache, path, 1 << 20, &io);
        assert_int_equal(messages, 0);
        write_one(&cache, 1);
        assert_true(reads_back(&cache, 1));
        at_disk_cache_free(&cache);
        temp_dir_remove(path);
    }
}

static void an_untrusted_directory_is_refused(void **state) {
    char link_path[TEMP_DIR_CHARS + 16];
    snprintf(link_path, sizeof link_path, "%s.link", (char *)*state);
    assert_int_equal(symlink(*state, link_path), 0);
    assert_int_equal(chmod(*state, 0770), 0);
    assert_off(*state);
    assert_off(link_path);
    unlink(link_path);
    assert_int_equal(chmod(*state, 0702), 0);
    assert_off(*state);
    assert_int_equal(chmod(*state, 0700), 0);
    assert_int_equal(symlink(link_path, link_path), 0);
    assert_off(link_path);
    unlink(link_path);
    assert_off("/proc/nothing/here");
    assert_off("/dev/null");
}

/* ---- Damage ---- */

static void a_damaged_file_is_removed_and_replaced(void **state) {
    at_disk_cache cache;
    char file[TEMP_DIR_CHARS];
    open_cache(&cache, *state, 1 << 20, at_default_io());
    for (unsigned round = 0; round < 4; round++) {
        write_one(&cache, 1);
        temp_dir_first(*state, ".attune", file);
        assert_true(file[0]);
        if (round == 0) assert_int_equal(truncate(file, 100), 0);
        if (round == 1) assert_int_equal(truncate(file, 0), 0);
        if (round == 2) {
            const int fd = open(file, O_WRONLY | O_APPEND);
            assert_int_equal(write(fd, "x", 1), 1);
            close(fd);
        }
        if (round == 3) { /* a link to a good file is none */
            char other[TEMP_DIR_CHARS + 8];
            snprintf(other, sizeof other, "%s.other", file);
            assert_int_equal(rename(file, other), 0);
            assert_int_equal(symlink(other, file), 0);
        }
        assert_false(reads_back(&cache, 1));
        assert_int_equal(atomic_load(&cache.damaged), round + 1);
        assert_int_equal(temp_dir_count(*state, "", ".attune"), 0);
    }
    write_one(&cache, 1);
    assert_true(reads_back(&cache, 1));
    at_disk_cache_free(&cache);
}

static int read_only_directory(int dir, const char *path, int flags) {
    (void)dir, (void)path, (void)flags;
    errno = EROFS;
    return -1;
}

static void the_log_says_whether_a_damaged_file_is_gone(void **state) {
    at_disk_cache cache;
    at_io io = *at_default_io();
    char file[TEMP_DIR_CHARS];
    open_cache(&cache, *state, 1 << 20, &io);
    write_one(&cache, 1);
    temp_dir_first(*state, ".attune", file);
    assert_int_equal(truncate(file, 100), 0);
    io.unlinkat = read_only_directory;
    assert_false(reads_back(&cache, 1));
    assert_non_null(strstr(last_message, "could not be removed"));
    io.unlinkat = at_default_io()->unlinkat;
    assert_false(reads_back(&cache, 1));
    assert_non_null(strstr(last_message, "was removed"));
    at_disk_cache_free(&cache);
}

/* Two keys with one name: the full key decides, and the file is not damaged. */
static void a_hash_collision_is_a_miss(void **state) {
    at_disk_cache cache;
    open_cache(&cache, *state, 1 << 20, at_default_io());
    write_one(&cache, 1);
    at_key key = key_of(1);
    key.bytes[7] ^= 1; /* and the hash stays */
    uint8_t *data;
    at_cache_file entry;
    assert_false(at_disk_cache_read(&cache, &key, &data, &entry));
    assert_int_equal(atomic_load(&cache.damaged), 0);
    assert_true(reads_back(&cache, 1));
    at_disk_cache_free(&cache);
}

static void code_for_another_cpu_is_a_miss(void **state) {
    at_disk_cache cache;
    open_cache(&cache, *state, 1 << 20, at_default_io());
    const at_key key = key_of(1);
    at_cache_file entry = entry_of(&key);
    entry.required = 1u << 31;
    set_required(1u << 31);
    at_disk_cache_write(&cache, &key, &entry);
    set_required(HERE);
    assert_false(reads_back(&cache, 1));
    assert_int_equal(temp_dir_count(*state, "", ".attune"), 1);
    assert_int_equal(atomic_load(&cache.damaged), 0);
    write_one(&cache, 1); /* after the miss; otherwise each start would compile again */
    assert_true(reads_back(&cache, 1));
    at_disk_cache_free(&cache);
}

/* Whichever of the two says more: such an entry would be refused at every start. */
static void a_header_that_contradicts_the_image_is_damage(void **state) {
    at_disk_cache cache;
    open_cache(&cache, *state, 1 << 20, at_default_io());
    for (int round = 0; round < 2; round++) {
        const at_key key = key_of(1);
        at_cache_file entry = entry_of(&key);
        if (round == 0) entry.required = HERE | 1u << 31;
        if (round == 1) set_required(HERE | 1u << 31);
        at_disk_cache_write(&cache, &key, &entry);
        set_required(HERE);
        assert_false(reads_back(&cache, 1));
        assert_int_equal(atomic_load(&cache.damaged), round + 1);
        assert_int_equal(temp_dir_count(*state, "", ".attune"), 0);
    }
    write_one(&cache, 1);
    assert_true(reads_back(&cache, 1));
    at_disk_cache_free(&cache);
}

/* ---- Bounds ---- */

static void the_least_recently_used_go(void **state) {
    at_disk_cache cache;
    char file[TEMP_DIR_CHARS + 64], name[AT_FILE_CHARS];
    open_cache(&cache, *state, 1 << 20, at_default_io());
    for (uint32_t i = 0; i < 64; i++) {
        const at_key key = key_of(i);
        write_one(&cache, i);
        at_file_name(&key, name);
        snprintf(file, sizeof file, "%s/%s", (char *)*state, name);
        make_older(file, 100000 - (int)i);
    }
    assert_true(reads_back(&cache, 0)); /* a hit makes it young */
    snprintf(file, sizeof file, "%s/tmp-1-1", (char *)*state);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    make_older(file, 100000);
    struct stat status;
    snprintf(file, sizeof file, "%s/%s", (char *)*state, name);
    assert_int_equal(stat(file, &status), 0);
    const uint64_t removed =
        at_files_sweep(at_default_io(), cache.dir, at_default_allocator(), (uint64_t)status.st_size * 40);
    assert_int_equal(removed, 64 - 35);
    assert_true(reads_back(&cache, 0));
    assert_true(reads_back(&cache, 63));
    assert_false(reads_back(&cache, 1));
    assert_false(reads_back(&cache, 29));
    assert_true(reads_back(&cache, 30));
    assert_int_equal(temp_dir_count(*state, "tmp-", ""), 0);
    at_disk_cache_free(&cache);
}

/* A clock that was wrong once: what it dated is neither kept for ever nor taken for what somebody is writing. */
static void times_in_the_future_are_aged_out(void **state) {
    at_disk_cache cache;
    char file[TEMP_DIR_CHARS + 64], name[AT_FILE_CHARS];
    struct stat status;
    open_cache(&cache, *state, 1 << 20, at_default_io());
    for (uint32_t i = 0; i < 8; i++) {
        const at_key key = key_of(i);
        write_one(&cache, i);
        at_file_name(&key, name);
        snprintf(file, sizeof file, "%s/%s", (char *)*state, name);
        make_older(file, i % 2 ? 100 : -1000000);
    }
    assert_int_equal(stat(file, &status), 0);
    assert_true(reads_back(&cache, 0)); /* a hit puts its time right */
    snprintf(file, sizeof file, "%s/tmp-0123456789abcdef0123456789abcdef", (char *)*state);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    make_older(file, -1000000);
    const uint64_t limit = (uint64_t)status.st_size * 6;
    assert_int_equal(at_files_trim(at_default_io(), cache.dir, at_default_allocator(), limit, limit).files, 2);
    for (uint32_t i = 0; i < 8; i++)
        if (i % 2 || !i) assert_true(reads_back(&cache, i));
    assert_int_equal(stat(file, &status), 0); /* it may be in use, and is old in an hour */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* time() may lag a tick behind the file system's clock */
    assert_true(status.st_mtim.tv_sec <= now.tv_sec);
    at_disk_cache_free(&cache);
}

/* Another process's sweep is one file ahead of this one, all the way. */
static int already_removed(int dir, const char *path, int flags) {
    assert_int_equal(at_default_io()->unlinkat(dir, path, flags), 0);
    errno = ENOENT;
    return -1;
}

static void sweeps_at_the_same_time_evict_once(void **state) {
    at_disk_cache cache;
    at_io io = *at_default_io();
    io.unlinkat = already_removed;
    open_cache(&cache, *state, 1 << 20, at_default_io());
    for (uint32_t i = 0; i < 64; i++) write_one(&cache, i);
    uint8_t *data;
    size_t bytes;
    encode(&data, &bytes);
    at_free(NULL, data);
    assert_int_equal(at_files_sweep(&io, cache.dir, at_default_allocator(), bytes * 40), 0);
    assert_int_equal(temp_dir_count(*state, "", ".attune"), 35);
    at_disk_cache_free(&cache);
}

static void writes_keep_to_the_capacity(void **state) {
    at_disk_cache cache;
    open_cache(&cache, *state, 10000, at_default_io());
    for (uint32_t i = 0; i < 200; i++) write_one(&cache, i);
    assert_true(temp_dir_count(*state, "", ".attune") < 40);
    assert_true(atomic_load(&cache.evictions) >= 160);
    at_disk_cache_free(&cache);
}

/* ---- Failing writes ---- */

static ssize_t full_disk(int fd, const void *data, size_t bytes) {
    (void)fd, (void)data, (void)bytes;
    errno = ENOSPC;
    return -1;
}

static int read_only(int dir, const char *path, int flags, mode_t mode) {
    if ((flags & O_ACCMODE) != O_RDONLY) {
        errno = EROFS;
        return -1;
    }
    return at_default_io()->openat(dir, path, flags, mode);
}

static void writes_pause_after(const char *dir, const at_io *io) {
    at_disk_cache cache;
    open_cache(&cache, dir, 1 << 20, io);
    for (uint32_t i = 0; i < 50; i++) write_one(&cache, i);
    assert_int_equal(messages, 1);
    assert_int_equal(atomic_load(&cache.write_failures), 1);
    assert_int_equal(temp_dir_count(dir, "", ""), 0);
    cache.io = at_default_io(); /* space again, but the pause lasts */
    write_one(&cache, 1);
    assert_int_equal(temp_dir_count(dir, "", ""), 0);
    cache.paused_until = 0;
    write_one(&cache, 1);
    assert_true(reads_back(&cache, 1));
    at_disk_cache_free(&cache);
}

static void a_full_disk_pauses_writes(void **state) {
    at_io io = *at_default_io();
    io.write = full_disk;
    writes_pause_after(*state, &io);
}

static void a_read_only_disk_pauses_writes(void **state) {
    at_io io = *at_default_io();
    io.openat = read_only;
    writes_pause_after(*state, &io);
}

/* ---- Walking ---- */

static int visit(void *user, const attune_cache_file *entry) {
    int *counts = user;
    counts[entry->status == ATTUNE_OK ? 0 : 1]++;
    if (entry->status == ATTUNE_OK)
        assert_string_equal(entry->problem, "seq_q=1");
    else
        assert_true(entry->message[0]);
    return 0;
}

static void listing_and_clearing(void **state) {
    at_disk_cache cache;
    char file[TEMP_DIR_CHARS];
    int counts[2] = {0};
    uint64_t removed;
    open_cache(&cache, *state, 1 << 20, at_default_io());
    for (uint32_t i = 0; i < 5; i++) write_one(&cache, i);
    temp_dir_first(*state, ".attune", file);
    assert_int_equal(truncate(file, 60), 0);
    assert_int_equal(at_disk_cache_visit(&cache, visit, counts, NULL), ATTUNE_OK);
    assert_int_equal(counts[0], 4);
    assert_int_equal(counts[1], 1);
    snprintf(file, sizeof file, "%s/keep.txt", (char *)*state);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(at_disk_cache_clear(&cache, &removed, NULL), ATTUNE_OK);
    assert_int_equal(removed, 5);
    assert_int_equal(temp_dir_count(*state, "", ""), 1); /* files of others stay */
    at_disk_cache_free(&cache);
}

/* A sweep of another process takes each entry between the directory's listing and the opening of the file. */
static int evicted_before_opening(int dir, const char *path, int flags, mode_t mode) {
    if (at_file_is_kernel(path)) unlinkat(dir, path, 0);
    return at_default_io()->openat(dir, path, flags, mode);
}

static void what_is_evicted_during_a_listing_is_left_out(void **state) {
    at_disk_cache cache;
    at_io io = *at_default_io();
    int counts[2] = {0};
    open_cache(&cache, *state, 1 << 20, &io);
    for (uint32_t i = 0; i < 5; i++) write_one(&cache, i);
    io.openat = evicted_before_opening;
    assert_int_equal(at_disk_cache_visit(&cache, visit, counts, NULL), ATTUNE_OK);
    assert_int_equal(counts[0], 0);
    assert_int_equal(counts[1], 0);
    at_disk_cache_free(&cache);
}

/* ---- Path ---- */

static void the_environment_names_the_directory(void **state) {
    (void)state;
    char path[256], small[8];
    at_error err = {0};
    unsetenv("ATTUNE_CACHE_DIR");
    setenv("XDG_CACHE_HOME", "/x", 1);
    setenv("HOME", "/h", 1);
    assert_int_equal(at_cache_dir_path(NULL, path, sizeof path, NULL), ATTUNE_OK);
    assert_string_equal(path, "/x/attune");
    setenv("XDG_CACHE_HOME", "relative", 1);
    at_cache_dir_path(NULL, path, sizeof path, NULL);
    assert_string_equal(path, "/h/.cache/attune");
    setenv("ATTUNE_CACHE_DIR", "/own", 1);
    at_cache_dir_path(NULL, path, sizeof path, NULL);
    assert_string_equal(path, "/own");
    at_cache_dir_path("", path, sizeof path, NULL);
    assert_string_equal(path, "");
    assert_int_equal(at_cache_dir_path("/far/too/long", small, sizeof small, &err), ATTUNE_INVALID_ARGUMENT);
}

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_entry_comes_back),
        cmocka_unit_test(loop_ir_has_a_format_version),
        cmocka_unit_test(loop_ir_may_be_long),
        cmocka_unit_test(each_flipped_bit_is_noticed),
        cmocka_unit_test(each_truncation_is_noticed),
        WITH_DIRECTORY(an_entry_is_found_again),
        WITH_DIRECTORY(without_unnamed_files),
        WITH_DIRECTORY(temporary_files_of_others_stay),
        WITH_DIRECTORY(without_hard_links),
        WITH_DIRECTORY(the_directory_is_made),
        WITH_DIRECTORY(an_untrusted_directory_is_refused),
        WITH_DIRECTORY(a_link_to_an_own_directory_is_followed),
        WITH_DIRECTORY(a_link_of_another_user_is_not_followed),
        WITH_DIRECTORY(results_lie_in_the_directory_that_was_opened),
        WITH_DIRECTORY(an_empty_path_is_no_directory),
        WITH_DIRECTORY(a_signal_does_not_switch_it_off),
        WITH_DIRECTORY(a_damaged_file_is_removed_and_replaced),
        WITH_DIRECTORY(the_log_says_whether_a_damaged_file_is_gone),
        WITH_DIRECTORY(a_hash_collision_is_a_miss),
        WITH_DIRECTORY(code_for_another_cpu_is_a_miss),
        WITH_DIRECTORY(a_header_that_contradicts_the_image_is_damage),
        WITH_DIRECTORY(the_least_recently_used_go),
        WITH_DIRECTORY(times_in_the_future_are_aged_out),
        WITH_DIRECTORY(sweeps_at_the_same_time_evict_once),
        WITH_DIRECTORY(writes_keep_to_the_capacity),
        WITH_DIRECTORY(a_full_disk_pauses_writes),
        WITH_DIRECTORY(a_read_only_disk_pauses_writes),
        WITH_DIRECTORY(listing_and_clearing),
        WITH_DIRECTORY(what_is_evicted_during_a_listing_is_left_out),
        cmocka_unit_test(the_environment_names_the_directory),
    };
    image_bytes = fake_image(image, 4, 16, 42);
    set_required(HERE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
