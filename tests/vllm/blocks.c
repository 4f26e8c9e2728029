/* Counts the memory that attune's libraries have allocated and nobody has freed: LD_PRELOAD this, and call
 * blocks_watch() when they are loaded. Who allocates is known by the return address; who frees does not matter. */
#define _GNU_SOURCE
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { LIBRARIES = 8, CHAINS = 1 << 16, BLOCKS = 1 << 18 };

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);
extern void __libc_free(void *block);

typedef struct node {
    void *block;
    struct node *next;
} node;

static uintptr_t begins[LIBRARIES], ends[LIBRARIES];
static atomic_int libraries;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static node nodes[BLOCKS], *unused;
static _Atomic(node *) chains[CHAINS];
static long taken, live_blocks, live_bytes, lost;

static int note_library(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size, (void)user;
    const char *const name = strrchr(info->dlpi_name, '/');
    if (!name || !strstr(name, "libattune") || libraries == LIBRARIES) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            begins[libraries] = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ends[libraries] = begins[libraries] + info->dlpi_phdr[i].p_memsz;
            libraries++;
            return 0;
        }
    return 0;
}

/* Counts what is allocated from now on. The number of attune's libraries in the process. */
int blocks_watch(void) {
    libraries = 0;
    dl_iterate_phdr(note_library, NULL);
    return libraries;
}

/* Blocks, and their bytes; -1 if there were more than this can count. */
long blocks_live(long *bytes) {
    pthread_mutex_lock(&lock);
    const long blocks = lost ? -1 : live_blocks;
    *bytes = live_bytes;
    pthread_mutex_unlock(&lock);
    return blocks;
}

static unsigned chain_of(const void *block) { return (unsigned)((uintptr_t)block >> 4) % CHAINS; }

static void *note(void *block, const void *caller) {
    int is_ours = 0;
    for (int i = 0; i < libraries && !is_ours; i++)
        is_ours = (uintptr_t)caller >= begins[i] && (uintptr_t)caller < ends[i];
    if (!is_ours || !block) return block;
    pthread_mutex_lock(&lock);
    node *const one = unused ? unused : taken < BLOCKS ? &nodes[taken++] : NULL;
    if (one) {
        if (one == unused) unused = one->next;
        one->block = block;
        one->next = chains[chain_of(block)];
        chains[chain_of(block)] = one;
        live_blocks++, live_bytes += (long)malloc_usable_size(block);
    } else {
        lost++;
    }
    pthread_mutex_unlock(&lock);
    return block;
}

static void forget(void *block) {
    if (!block || !chains[chain_of(block)]) return;
    pthread_mutex_lock(&lock);
    node *before = NULL, *one = chains[chain_of(block)];
    for (; one && one->block != block; one = one->next) before = one;
    if (one) {
        if (before)
            before->next = one->next;
        else
            chains[chain_of(block)] = one->next;
        one->next = unused, unused = one;
        live_blocks--, live_bytes -= (long)malloc_usable_size(block);
    }
    pthread_mutex_unlock(&lock);
}

void *malloc(size_t bytes) { return note(__libc_malloc(bytes), __builtin_return_address(0)); }

void *calloc(size_t count, size_t bytes) { return note(__libc_calloc(count, bytes), __builtin_return_address(0)); }

void *aligned_alloc(size_t align, size_t bytes) {
    return note(__libc_memalign(align, bytes), __builtin_return_address(0));
}

void free(void *block) {
    forget(block);
    __libc_free(block);
}
