/* Packs: signed files of many entries, which are read where they lie; and what is not trusted. */
#define _GNU_SOURCE
#include "cache/pack.h"
#include "engine/create.h"
#include "support/engine/contexts.h"
#include "support/engine/fake_codegen.h"
#include "support/engine/sign.h"
#include "support/problems.h"
#include "support/statuses.h"
#include "support/temp_dir.h"

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

enum { ENTRIES = 3, MOST_BYTES = 1 << 16 };

static fake_codegen codegen;
static char dir[TEMP_DIR_CHARS]; /* of the pack, the keys in keys/, and a cache in cache/ */
static char pack[TEMP_DIR_CHARS + 32], keys[TEMP_DIR_CHARS + 32], cache[TEMP_DIR_CHARS + 32];
static sign_key fleet, old;

static attune_context *open_context(const char *cache_dir, const char *pack_path, bool is_strict) {
    const at_context_hooks hooks = {.compile = fake_compile, .compile_user = &codegen};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    options.cache_dir = cache_dir;
    options.cache_base = "";
    options.cache_pack = pack_path;
    options.cache_keys = keys;
    options.log = keep_message;
    forget_messages();
    if (is_strict) setenv("ATTUNE_STRICT", "1", 1);
    context = test_context(&options, &hooks);
    unsetenv("ATTUNE_STRICT");
    return context;
}

static attune_status get(attune_context *context, int number, attune_origin *origin) {
    char text[64];
    snprintf(text, sizeof text, "num_heads=2,seq_q=%d,head_dim=8", number + 1);
    const attune_problem problem = problem_parsed(text);
    attune_kernel *kernel;
    const attune_status status = attune_compile(context, &problem, NULL, &kernel);
    if (status) return status;
    const attune_kernel_info info = kernel_info_of(kernel);
    if (origin) *origin = info.origin;
    attune_kernel_release(kernel);
    return ATTUNE_OK;
}

/* How many of the kernels there are without compiling. */
static int count_there(attune_context *context) {
    int there = 0;
    for (int i = 0; i < ENTRIES; i++) there += get(context, i, NULL) == ATTUNE_OK;
    return there;
}

static size_t read_pack(uint8_t bytes[MOST_BYTES]) {
    FILE *file = fopen(pack, "rb");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, MOST_BYTES, file);
    fclose(file);
    assert_true(count > 0 && count < MOST_BYTES);
    return count;
}

static void trust(const sign_key *key, const char *name) {
    char path[TEMP_DIR_CHARS + 64], text[SIGN_TEXT];
    snprintf(path, sizeof path, "%s/%s.pub", keys, name);
    sign_print_key(key, text);
    file_write(path, text, strlen(text));
}

static void distrust(const char *name) {
    char path[TEMP_DIR_CHARS + 64];
    snprintf(path, sizeof path, "%s/%s.pub", keys, name);
    unlink(path);
}

static const char *comment = "timestamp:0";

static attune_status seal_by(const sign_key *key) {
    char path[TEMP_DIR_CHARS + 64], text[SIGN_TEXT];
    void *signed_part;
    char *there;
    size_t bytes;
    attune_context *context = open_context("", "", false);
    assert_int_equal(attune_cache_pack_parts(context, pack, &signed_part, &bytes, &there), ATTUNE_OK);
    sign_print(key, signed_part, bytes, comment, text);
    snprintf(path, sizeof path, "%s/signature", dir);
    file_write(path, text, strlen(text));
    const attune_status status = attune_cache_seal(context, pack, path);
    if (status) snprintf(last_message, sizeof last_message, "%s", attune_last_message());
    attune_free(context, signed_part);
    attune_free(context, there);
    attune_context_destroy(context);
    return status;
}

static void make_pack(void) {
    attune_cache_copied copied = {.struct_size = sizeof copied};
    attune_context *context = open_context(cache, "", false);
    for (int i = 0; i < ENTRIES; i++) assert_int_equal(get(context, i, NULL), ATTUNE_OK);
    if (attune_cache_pack(context, pack, NULL, 0, &copied)) fail_msg("%s", attune_last_message());
    assert_int_equal(copied.added, ENTRIES);
    attune_context_destroy(context);
    assert_int_equal(seal_by(&fleet), ATTUNE_OK);
}

static int setup(void **state) {
    (void)state;
    temp_dir_make(dir);
    snprintf(pack, sizeof pack, "%s/kernels.pack", dir);
    snprintf(keys, sizeof keys, "%s/keys", dir);
    snprintf(cache, sizeof cache, "%s/cache", dir);
    mkdir(keys, 0755);
    sign_key_make(&fleet, 1);
    sign_key_make(&old, 2);
    trust(&fleet, "fleet");
    make_pack();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    temp_dir_remove_all(dir);
    return 0;
}

/* ---- What works ---- */

static void kernels_come_from_it(void **state) {
    attune_origin origin;
    attune_machine_info info = {.struct_size = sizeof info};
    (void)state;
    attune_context *context = open_context("", pack, true);
    for (int i = 0; i < ENTRIES; i++) {
        assert_int_equal(get(context, i, &origin), ATTUNE_OK);
        assert_int_equal(origin, ATTUNE_FROM_PACK);
    }
    assert_int_equal(get(context, ENTRIES, NULL), ATTUNE_NOT_CACHED);
    assert_int_equal(statistics_of(context).pack_hits, ENTRIES);
    assert_int_equal(attune_get_machine_info(context, &info), ATTUNE_OK);
    assert_string_equal(info.cache_pack, pack);
    assert_string_equal(info.cache_pack_refusal, "");
    attune_context_destroy(context);
}

static void keep_event(void *user, const attune_event *event) {
    if (event->kind == ATTUNE_EVENT_DISK_HIT) snprintf(user, ATTUNE_MESSAGE_BYTES, "%s", event->message);
}

static void events_name_it(void **state) {
    char message[ATTUNE_MESSAGE_BYTES] = "";
    (void)state;
    attune_context *context = open_context("", pack, true);
    context->log.event = keep_event;
    context->log.event_user = message;
    assert_int_equal(get(context, 0, NULL), ATTUNE_OK);
    assert_string_equal(message, "it is in the pack");
    attune_context_destroy(context);
}

static void the_directory_comes_first(void **state) {
    attune_origin origin;
    (void)state;
    attune_context *context = open_context(cache, pack, true);
    assert_int_equal(get(context, 0, &origin), ATTUNE_OK);
    assert_int_equal(origin, ATTUNE_FROM_DISK);
    attune_context_destroy(context);
}

static void chosen_entries_are_packed_alone(void **state) {
    attune_cache_copied copied = {.struct_size = sizeof copied};
    const attune_problem problem = problem_parsed("num_heads=2,seq_q=2,head_dim=8");
    (void)state;
    attune_context *context = open_context(cache, "", false);
    attune_kernel *kernel = kernel_of(context, &problem);
    const attune_kernel_info info = kernel_info_of(kernel);
    const char *const names[] = {info.key};
    assert_int_equal(attune_cache_pack(context, pack, names, 1, &copied), ATTUNE_OK);
    assert_int_equal(copied.added, 1);
    assert_int_equal(attune_cache_pack(context, pack, names, 0, &copied), ATTUNE_INVALID_ARGUMENT);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    assert_int_equal(seal_by(&fleet), ATTUNE_OK);
    context = open_context("", pack, true);
    assert_int_equal(count_there(context), 1);
    attune_context_destroy(context);
}

/* A fleet that relies on a pack must not find out on its own that a kernel is not in it. */
static void a_missing_kernel_fails_the_whole(void **state) {
    attune_cache_copied copied = {.struct_size = sizeof copied};
    const attune_problem problem = problem_parsed("num_heads=2,seq_q=2,head_dim=8");
    const char *const absent = "0123456789abcdef0123456789abcdef";
    struct stat status;
    (void)state;
    attune_context *context = open_context(cache, "", false);
    attune_kernel *kernel = kernel_of(context, &problem);
    const attune_kernel_info info = kernel_info_of(kernel);
    const char *const names[] = {info.key, absent};
    unlink(pack);
    assert_int_equal(attune_cache_pack(context, pack, names, 2, &copied), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "kernel 0123456789abcdef0123456789abcdef is in neither the cache "
                                               "directory nor the base: there is no pack");
    assert_int_equal(copied.added, 0);
    assert_int_equal(stat(pack, &status), -1);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static int count_visited(void *user, const attune_cache_file *entry) {
    assert_string_equal(entry->pack, pack);
    assert_int_equal(entry->status, ATTUNE_OK);
    assert_true(entry->is_usable);
    ++*(int *)user;
    return 0;
}

static void kernels_are_listed_and_taken_in(void **state) {
    attune_cache_copied copied = {.struct_size = sizeof copied};
    char fresh[TEMP_DIR_CHARS + 32];
    int visited = 0;
    (void)state;
    snprintf(fresh, sizeof fresh, "%s/fresh", dir);
    attune_context *context = open_context("", pack, false);
    assert_int_equal(attune_cache_visit(context, count_visited, &visited), ATTUNE_OK);
    assert_int_equal(visited, ENTRIES);
    attune_context_destroy(context);
    context = open_context(fresh, "", true);
    assert_int_equal(attune_cache_add(context, pack, &copied), ATTUNE_OK);
    assert_int_equal(copied.added, ENTRIES);
    assert_int_equal(count_there(context), ENTRIES);
    assert_int_equal(attune_cache_add(context, pack, &copied), ATTUNE_OK);
    assert_int_equal(copied.known, ENTRIES);
    attune_context_destroy(context);
}

/* ---- Who is trusted ---- */

static void refused(const char *part) {
    attune_machine_info info = {.struct_size = sizeof info};
    attune_cache_copied copied = {.struct_size = sizeof copied};
    attune_context *context = open_context("", pack, true);
    assert_int_equal(count_there(context), 0);
    assert_int_equal(attune_get_machine_info(context, &info), ATTUNE_OK);
    assert_string_equal(info.cache_pack, "");
    if (!strstr(info.cache_pack_refusal, part)) fail_msg("\"%s\" lacks \"%s\"", info.cache_pack_refusal, part);
    assert_true(attune_cache_add(context, pack, &copied) != ATTUNE_OK);
    assert_non_null(strstr(attune_last_message(), part));
    assert_int_equal(copied.added, 0);
    attune_context_destroy(context);
}

static void keys_rotate(void **state) {
    (void)state;
    distrust("fleet");
    refused("signed by key 0101010101010101, which is none of the 0 keys in");
    trust(&old, "old");
    refused("which is none of the 1 keys in");
    assert_int_equal(seal_by(&fleet), ATTUNE_BAD_FILE);
    trust(&fleet, "new");
    attune_context *context = open_context("", pack, true);
    assert_int_equal(count_there(context), ENTRIES);
    attune_context_destroy(context);
    assert_int_equal(seal_by(&old), ATTUNE_OK);
    distrust("old");
    refused("signed by key 0202020202020202");
}

/* A key of the same number is another key all the same. */
static void a_forged_number_does_not_help(void **state) {
    (void)state;
    sign_key forged;
    sign_key_make(&forged, 3);
    memcpy(forged.public.number, fleet.public.number, sizeof forged.public.number);
    distrust("fleet");
    trust(&forged, "forged");
    refused("was changed, or key 0101010101010101 has not signed it");
}

static void keys_that_others_can_write_do_not_count(void **state) {
    char path[TEMP_DIR_CHARS + 64];
    (void)state;
    snprintf(path, sizeof path, "%s/fleet.pub", keys);
    chmod(path, 0666);
    refused("none of the 0 keys");
    chmod(path, 0644);
    chmod(keys, 0777);
    refused("there are no keys");
    chmod(keys, 0755);
    snprintf(path, sizeof path, "%s/elsewhere", dir);
    assert_int_equal(rename(keys, path), 0);
    refused("there are no keys");
}

/* A refusal names the first file that should be a key and is none. */
static void keys_that_do_not_count_are_named(void **state) {
    char path[TEMP_DIR_CHARS + 64];
    (void)state;
    snprintf(path, sizeof path, "%s/fleet.pub", keys);
    chmod(path, 0666);
    refused("; fleet.pub does not count: others can write to it");
    unlink(path);
    file_write(path, "ssh-ed25519 AAAA", 16);
    chmod(path, 0644);
    refused("; fleet.pub does not count: it does not begin as a key of minisign does");
    unlink(path);
    assert_int_equal(symlink("/dev/null", path), 0);
    refused("; fleet.pub does not count: it is a link");
    unlink(path);
    assert_int_equal(mkdir(path, 0755), 0);
    refused("; fleet.pub does not count: it is not a regular file");
}

/* minisign allows trusted comments of thousands of bytes. */
static void a_long_comment_is_told(void **state) {
    static char text[1000];
    (void)state;
    memset(text, 'c', 600);
    comment = text;
    const attune_status fits = seal_by(&fleet);
    memset(text, 'c', 800);
    const attune_status status = seal_by(&fleet);
    comment = "timestamp:0";
    assert_int_equal(fits, ATTUNE_OK);
    assert_int_equal(status, ATTUNE_BAD_FILE);
    assert_non_null(strstr(last_message, "is too long for a pack, which has 1024 bytes for it: sign with a shorter"));
}

/* ---- What fails while it is written ---- */

static int sync_fails(int fd) {
    (void)fd;
    errno = EDQUOT;
    return -1;
}

static int stats;
static int moves_away(int fd, struct stat *status) {
    const int result = fstat(fd, status);
    status->st_dev += (dev_t)stats++;
    return result;
}

static attune_context *open_by(const at_io *io) {
    const at_context_hooks hooks = {.io = io, .compile = fake_compile, .compile_user = &codegen};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    options.cache_dir = cache;
    options.cache_base = options.cache_pack = "";
    options.cache_keys = keys;
    assert_int_equal(at_context_create(&options, &hooks, &context), ATTUNE_OK);
    return context;
}

static void a_write_that_fails_late_leaves_nothing(void **state) {
    char path[TEMP_DIR_CHARS + 64], command[2 * TEMP_DIR_CHARS];
    attune_cache_copied copied = {.struct_size = sizeof copied};
    at_io io = *at_default_io();
    (void)state;
    io.fsync = sync_fails;
    attune_context *context = open_by(&io);
    snprintf(path, sizeof path, "%s/late.pack", dir);
    assert_int_equal(attune_cache_pack(context, path, NULL, 0, &copied), ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "late.pack cannot be written: "));
    snprintf(command, sizeof command, "! ls '%s' | grep -E 'late|tmp-'", dir);
    assert_int_equal(system(command), 0);
    attune_context_destroy(context);
}

/* Two file systems may have files of one number. */
static void a_pack_that_was_replaced_is_not_sealed(void **state) {
    char path[TEMP_DIR_CHARS + 64];
    at_io io = *at_default_io();
    (void)state;
    assert_int_equal(seal_by(&fleet), ATTUNE_OK); /* leaves the signature */
    attune_context *context = open_by(&io);
    context->disk.dir = -1; /* its own files need no look */
    io.fstat = moves_away;
    stats = 0;
    snprintf(path, sizeof path, "%s/signature", dir);
    assert_int_equal(attune_cache_seal(context, pack, path), ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "another file has taken its place"));
    io.fstat = fstat;
    attune_context_destroy(context);
}

static void an_unsigned_pack_is_refused(void **state) {
    uint8_t bytes[MOST_BYTES];
    at_pack_sizes sizes;
    (void)state;
    const size_t count = read_pack(bytes);
    assert_null(at_pack_header_check(bytes, count, &sizes));
    memset(bytes + sizes.signed_bytes, 0, AT_SIGNATURE_TEXT);
    file_write(pack, bytes, count);
    refused("is not signed");
}

/* ---- Damage ---- */

/* One bit of each byte: the pack is refused, or the one entry that the byte belongs to. */
static void no_byte_can_be_changed(void **state) {
    static uint8_t bytes[MOST_BYTES];
    at_pack_sizes sizes;
    (void)state;
    const size_t count = read_pack(bytes);
    assert_null(at_pack_header_check(bytes, count, &sizes));
    const size_t entries = sizes.signed_bytes + AT_SIGNATURE_TEXT;
    for (size_t i = 0; i < count; i += i < entries ? 1 : 5) {
        const uint8_t before = bytes[i];
        bytes[i] ^= (uint8_t)(1 << i % 8);
        file_write(pack, bytes, count);
        bytes[i] = before;
        attune_context *context = open_context("", pack, true);
        const int there = count_there(context);
        const uint64_t damaged = statistics_of(context).damaged_files;
        attune_context_destroy(context);
        if (i < entries ? there : there != ENTRIES - 1 || damaged != 1)
            fail_msg("byte %zu of %zu: %d kernels, %d damaged", i, count, there, (int)damaged);
    }
}

static void no_length_but_its_own_is_right(void **state) {
    static uint8_t bytes[MOST_BYTES];
    (void)state;
    const size_t count = read_pack(bytes);
    for (size_t length = 0; length < count; length += 61) {
        file_write(pack, bytes, length);
        refused(pack);
    }
    bytes[count] = 0;
    file_write(pack, bytes, count + 1);
    refused("it is not as long as its header says");
}

/* Another file takes its place, and then its own bytes change, while a context uses it. */
static void it_may_change_while_it_is_open(void **state) {
    static uint8_t bytes[MOST_BYTES];
    char moved[TEMP_DIR_CHARS + 32];
    (void)state;
    const size_t count = read_pack(bytes);
    snprintf(moved, sizeof moved, "%s/moved", dir);
    attune_context *context = open_context("", pack, true);
    rename(pack, moved);
    file_write(pack, "another", 7);
    assert_int_equal(get(context, 0, NULL), ATTUNE_OK);
    memset(bytes, 0x5a, count);
    file_write(moved, bytes, count);
    assert_int_equal(get(context, 1, NULL), ATTUNE_NOT_CACHED);
    assert_int_equal(truncate(moved, 100), 0);
    assert_int_equal(get(context, 2, NULL), ATTUNE_NOT_CACHED);
    assert_non_null(strstr(last_message, "the pack has become shorter"));
    assert_int_equal(statistics_of(context).damaged_files, 2);
    attune_context_destroy(context);
}

/* A process that may compile heals. */
static void what_is_damaged_is_compiled(void **state) {
    static uint8_t bytes[MOST_BYTES];
    attune_origin origin;
    (void)state;
    const size_t count = read_pack(bytes);
    bytes[count - 1] ^= 1;
    file_write(pack, bytes, count);
    attune_context *context = open_context("", pack, false);
    int compiled = 0;
    for (int i = 0; i < ENTRIES; i++) {
        assert_int_equal(get(context, i, &origin), ATTUNE_OK);
        compiled += origin == ATTUNE_FROM_COMPILER;
    }
    assert_int_equal(compiled, 1);
    attune_context_destroy(context);
}

/* Hosts close all descriptors, and open files of their own. */
static void the_hosts_files_are_left_alone(void **state) {
    (void)state;
    attune_context *context = open_context("", pack, true);
    const int fd = context->disk.pack.fd;
    close(fd);
    const int other = open("/dev/zero", O_RDONLY);
    if (other != fd) assert_int_equal(dup2(other, fd), fd);
    assert_int_equal(get(context, 0, NULL), ATTUNE_NOT_CACHED);
    attune_context_destroy(context);
    assert_int_equal(fcntl(fd, F_GETFD) >= 0, 1);
    if (other != fd) close(other);
    close(fd);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(kernels_come_from_it),
        TEST(events_name_it),
        TEST(the_directory_comes_first),
        TEST(chosen_entries_are_packed_alone),
        TEST(a_missing_kernel_fails_the_whole),
        TEST(kernels_are_listed_and_taken_in),
        TEST(keys_rotate),
        TEST(a_forged_number_does_not_help),
        TEST(keys_that_others_can_write_do_not_count),
        TEST(keys_that_do_not_count_are_named),
        TEST(a_long_comment_is_told),
        TEST(a_write_that_fails_late_leaves_nothing),
        TEST(a_pack_that_was_replaced_is_not_sealed),
        TEST(an_unsigned_pack_is_refused),
        TEST(no_byte_can_be_changed),
        TEST(no_length_but_its_own_is_right),
        TEST(it_may_change_while_it_is_open),
        TEST(what_is_damaged_is_compiled),
        TEST(the_hosts_files_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
