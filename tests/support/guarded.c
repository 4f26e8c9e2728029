#define _GNU_SOURCE
#include "support/guarded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

guarded guard(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + page - 1) / page * page;
    guarded g = {.map_bytes = inside + page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(g.map, MAP_FAILED);
    assert_int_equal(mprotect(g.map + inside, page, PROT_NONE), 0);
    g.data = g.map + inside - bytes;
    return g;
}

void unguard(guarded *g) { munmap(g->map, g->map_bytes); }
