/* llama.cpp clears a cache before its first graph, so it is on small pages by then. MADV_HUGEPAGE says that it may be
 * on huge pages, and MADV_COLLAPSE (Linux 6.1) moves it there at once, in 0.5 ms or more a page. An older kernel
 * moves it in the background. Pages are moved when a cache has grown into them, so a long cache costs no pause. */
#define _GNU_SOURCE
#include "pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Below LEAST a node reads too little to gain. */
enum { HUGE_PAGE = 2 << 20, PIECE = 8 * HUGE_PAGE, LEAST = 256 << 10 };

struct pages {
    struct pages *next;
    const void *buffer;
    char *base;   /* the buffer's memory; NULL: it is not of the CPU's type */
    size_t size;  /* of the buffer */
    char *begin;  /* its first whole page */
    size_t bytes; /* of all its whole pages; 0: it stays as it is */
    char asked[]; /* for each piece of them 1 if it was asked for */
};

/* Whether the first line of the file has the text. */
static bool file_has(const char *path, const char *text) {
    char content[128] = "";
    FILE *const file = fopen(path, "re");
    if (!file) return false;
    const bool is_read = fgets(content, sizeof content, file) != NULL;
    fclose(file);
    return is_read && strstr(content, text);
}

static bool are_wanted(void) {
#define SYSTEM "/sys/kernel/mm/transparent_hugepage/"
    const char *const wish = getenv("ATTUNE_GGML_HUGE_PAGES");
    return !(wish && !strcmp(wish, "0")) && file_has(SYSTEM "hpage_pmd_size", "2097152") &&
           !file_has(SYSTEM "enabled", "[never]");
}

/* NULL: there is no memory. */
static pages *add(pages **seen, void *buffer, char *base, size_t size) {
    size_t bytes = 0;
    char *begin = NULL;
    if (base && are_wanted()) {
        const size_t to_page = -(size_t)base % HUGE_PAGE;
        begin = base + to_page;
        bytes = size > to_page ? (size - to_page) / HUGE_PAGE * HUGE_PAGE : 0;
    }
    pages *const p = calloc(1, sizeof *p + (bytes + PIECE - 1) / PIECE);
    if (!p) return NULL;
    if (bytes) madvise(begin, bytes, MADV_HUGEPAGE);
    *p = (pages){.next = *seen, .buffer = buffer, .base = base, .size = size, .begin = begin, .bytes = bytes};
    *seen = p;
    return p;
}

/* A buffer that was freed leaves its address to another, which has other memory. */
static pages *find(pages **seen, void *buffer) {
    const bool is_of_cpu = host.ggml_backend_buffer_get_type(buffer) == host.ggml_backend_cpu_buffer_type();
    char *const base = is_of_cpu ? host.ggml_backend_buffer_get_base(buffer) : NULL;
    const size_t size = host.ggml_backend_buffer_get_size(buffer);
    pages **at = seen;
    while (*at && (*at)->buffer != buffer) at = &(*at)->next;
    pages *const p = *at;
    if (p && p->base == base && p->size == size) return p;
    if (p) *at = p->next;
    free(p);
    return add(seen, buffer, base, size);
}

/* Moves the pieces that the tensor touches. What the system refuses stays on small pages. */
static void ask(pages **seen, const ggml_tensor *t) {
    const size_t bytes =
        (size_t)(t->ne[1] - 1) * t->nb[1] + (size_t)(t->ne[2] - 1) * t->nb[2] + (size_t)(t->ne[3] - 1) * t->nb[3];
    void *const buffer = t->view_src ? t->view_src->buffer : t->buffer;
    if (!buffer || bytes < LEAST) return;
    pages *const p = find(seen, buffer);
    const char *const data = t->data;
    for (size_t i = 0, at = 0; p && at < p->bytes; i++, at += PIECE) {
        char *const piece = p->begin + at;
        if (p->asked[i] || piece + PIECE <= data || piece >= data + bytes) continue;
        madvise(piece, p->bytes - at < PIECE ? p->bytes - at : PIECE, MADV_COLLAPSE);
        p->asked[i] = 1;
    }
}

void pages_ask(pages **seen, const ggml_node *node) {
    ask(seen, node->k);
    ask(seen, node->v);
}

void pages_free(pages *seen) {
    while (seen) {
        pages *const next = seen->next;
        free(seen);
        seen = next;
    }
}
