/* The plug-in of ggml moves caches to huge pages, where the system has some. */
#define _GNU_SOURCE
#include "ggml_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { HUGE_PAGE = 2 << 20, BYTES = 24 << 20, PIECE = 16 << 20, COLLAPSE = 25 };

/* kB on huge pages in the mapping that begins at `address`. */
static long huge_kb(const void *address) {
    FILE *const file = fopen("/proc/self/smaps", "re");
    char line[512];
    unsigned long begin, end;
    long kb = 0, of_line;
    bool is_here = false;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            is_here = begin >= (unsigned long)address && begin < (unsigned long)address + BYTES;
        if (is_here && sscanf(line, "AnonHugePages: %ld", &of_line) == 1) kb += of_line;
    }
    fclose(file);
    return kb;
}

/* Memory on small pages, which the system keeps there. It begins at a huge page. */
static char *small_pages(void) {
    char *const all = mmap(NULL, BYTES + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    char *const memory = all + -(size_t)all % HUGE_PAGE;
    munmap(all, (size_t)(memory - all));
    munmap(memory + BYTES, (size_t)(all + HUGE_PAGE - memory));
    madvise(memory, BYTES, MADV_NOHUGEPAGE);
    memset(memory, 0, BYTES);
    return memory;
}

static void skip_without_huge_pages(void) {
    char *const memory = small_pages();
    char text[128] = "";
    FILE *const file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    const bool is_on = file && fgets(text, sizeof text, file) && !strstr(text, "[never]");
    if (file) fclose(file);
    madvise(memory, BYTES, MADV_HUGEPAGE);
    madvise(memory, PIECE, COLLAPSE);
    const long kb = huge_kb(memory);
    munmap(memory, BYTES);
    if (!is_on || kb < PIECE / 1024) skip();
}

/* Computes a token whose keys lie in the buffer's memory. Returns how many kB of it are on huge pages then. */
static long kb_by(ggml_backend *backend, fake_buffer *buffer, int64_t keys) {
    const fake_case c = {.heads = 4, .kv_heads = 2, .rows = 1, .keys = keys, .dim = 32, .k_type = F32, .v_type = F32};
    float expected[4 * 32];
    ggml_tensor *const node = make_node(&c), *const k = node->src[1];
    char *const inside = (char *)buffer->base + 4096;
    memcpy(inside, k->data, (size_t)keys * k->nb[1]);
    free(k->data);
    k->data = inside, k->buffer = buffer;
    reference(node, expected);
    assert_int_equal(compute(backend, node), GGML_ABI_SUCCESS);
    assert_int_equal(fake.cpu_nodes, 0);
    assert_true(worst_difference(node, expected) < 2e-5);
    k->data = NULL;
    free_node(node);
    return huge_kb(buffer->base);
}

/* The same with a backend and a buffer of its own. */
static long kb_after(bool is_foreign, int64_t keys) {
    ggml_backend *const backend = open_backend();
    fake_buffer buffer = {small_pages(), BYTES, is_foreign};
    const long kb = kb_by(backend, &buffer, keys);
    backend->free(backend);
    munmap(buffer.base, BYTES);
    return kb;
}

/* Where memory is short or in pieces, moving may fail once: then it is tried again, with memory that is new. */
static void assert_moves(bool moves(void)) {
    bool has_moved = false;
    for (int i = 0; i < 20 && !has_moved; i++) has_moved = moves();
    assert_true(has_moved);
}

static bool a_long_cache(void) { return kb_after(false, 9000) == PIECE / 1024; } /* 2.3 MB of keys */

static void caches_move_to_huge_pages(void **state) {
    (void)state;
    skip_without_huge_pages();
    assert_moves(a_long_cache);
    assert_int_equal(kb_after(false, 500), 0); /* short */
    assert_int_equal(kb_after(true, 9000), 0);
    setenv("ATTUNE_GGML_HUGE_PAGES", "0", 1);
    assert_int_equal(kb_after(false, 9000), 0);
    unsetenv("ATTUNE_GGML_HUGE_PAGES");
}

static bool a_larger_buffer_and_another(void) {
    ggml_backend *const backend = open_backend();
    char *const memory[] = {small_pages(), small_pages()};
    fake_buffer buffer = {memory[0], 2 * HUGE_PAGE, false};
    const bool first = kb_by(backend, &buffer, 9000) == 2 * HUGE_PAGE / 1024;
    buffer.size = BYTES;
    const bool larger = kb_by(backend, &buffer, 9000) == PIECE / 1024;
    buffer.base = memory[1];
    const bool other = kb_by(backend, &buffer, 9000) == PIECE / 1024;
    backend->free(backend);
    munmap(memory[0], BYTES);
    munmap(memory[1], BYTES);
    return first && larger && other;
}

static void a_buffer_at_the_address_of_a_freed_one_is_another(void **state) {
    (void)state;
    skip_without_huge_pages();
    assert_moves(a_larger_buffer_and_another);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caches_move_to_huge_pages),
        cmocka_unit_test(a_buffer_at_the_address_of_a_freed_one_is_another),
    };
    setenv("ATTUNE_DEADLINE_US", "60000000", 1);
    setenv("ATTUNE_CACHE_DIR", "", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
