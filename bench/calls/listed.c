/* Attention over listed keys beside a loop that only reads the listed rows, in turns.
 *
 *     listed [--huge] [--unsorted] [--rounds N] [PROBLEM [SCHEDULE…]]
 *
 * One thread, by the clock of the thread. PROBLEM is one of kv_ids, with or without pages; without one there are
 * five. SCHEDULE changes the chosen schedule, several are measured side by side. Each call has new random ids, so
 * that no call finds its rows in a cache. The loop reads each row of K and V once, with prefetches; of several
 * distances it has the best. --huge: K and V lie in huge pages. `make bench-listed` runs it. */
#define _GNU_SOURCE
#include <attune.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LISTS = 64, MOST_SCHEDULES = 16, MOST_ROUNDS = 200, LINE = 64, NUM_DISTANCES = 5 };
static const int distances[NUM_DISTANCES] = {0, 4, 8, 16, 32}; /* keys; 0: none */

static void die(const char *what) {
    fprintf(stderr, "listed: %s: %s\n", what, attune_last_message());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t random_bits(void) {
    static uint64_t x = 88172645463325252;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x;
}

static void *allocate(size_t bytes, bool huge) {
    void *const memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || (huge && madvise(memory, bytes, MADV_HUGEPAGE))) die("no memory");
    return memory;
}

/* Small numbers of bf16 and f32: the exponent is below 1. */
static void fill(void *memory, size_t bytes) {
    uint32_t *words = memory;
    for (size_t i = 0; i < bytes / sizeof *words; i++) words[i] = (uint32_t)random_bits() & 0xbf7fbf7f;
}

typedef struct options {
    bool huge, unsorted;
    int rounds;
} options;

/* ---- A call ---- */

typedef struct call {
    attune_problem p;
    attune_arguments arguments;
    char *k, *v;         /* v is k with v_in_k */
    size_t k_row, v_row; /* bytes; v_row 0 with v_in_k */
    int32_t *ids;        /* [LISTS, lists of a call, num_ids] */
    int32_t *table;      /* with pages: [batch, max_pages] */
    int64_t lists;
} call;

static size_t bytes_of(attune_dtype type) {
    return type == ATTUNE_F32 ? 4 : type == ATTUNE_I8 || type == ATTUNE_F8 ? 1 : 2;
}

static int64_t pages_of(const attune_problem *p) {
    return p->page_size ? (p->seq_kv + p->page_size - 1) / p->page_size : 1;
}

/* Rows of K that a KV head of a sequence has. */
static int64_t tokens_of(const attune_problem *p) { return p->page_size ? pages_of(p) * p->page_size : p->seq_kv; }

static size_t rows_of(const attune_problem *p) { return (size_t)(p->batch * p->num_kv_heads * tokens_of(p)); }

/* The row of a key of a KV head of a sequence. */
static size_t row_at(const call *c, int64_t sequence, int64_t head, int32_t key) {
    const attune_problem *p = &c->p;
    if (!p->page_size) return (size_t)((sequence * p->num_kv_heads + head) * p->seq_kv + key);
    const int64_t page = c->table[sequence * pages_of(p) + key / p->page_size];
    return (size_t)((page * p->num_kv_heads + head) * p->page_size + key % p->page_size);
}

/* All pages in any order. */
static int32_t *new_table(const attune_problem *p) {
    const size_t count = (size_t)(p->batch * pages_of(p));
    int32_t *const table = malloc(count * sizeof *table);
    if (!table) die("no memory");
    for (size_t i = 0; i < count; i++) {
        const size_t other = random_bits() % (i + 1);
        table[i] = table[other], table[other] = (int32_t)i;
    }
    return table;
}

static int by_number(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Ascending as attune's index gives them, or in any order as PyTorch's topk does. */
static void draw(int32_t *ids, int64_t count, int64_t keys, bool sorted) {
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)(random_bits() % (uint64_t)keys);
    if (sorted) qsort(ids, (size_t)count, sizeof *ids, by_number);
}

static call open_call(const char *text, const options *o) {
    call c = {.p = ATTUNE_PROBLEM_INIT};
    if (attune_problem_parse(&c.p, text)) die(text);
    const attune_problem *p = &c.p;
    if (!p->head_dim_v) c.p.head_dim_v = p->head_dim;
    if (!p->dtype) c.p.dtype = ATTUNE_F32;
    if (!p->k_dtype) c.p.k_dtype = p->dtype;
    if (!p->v_dtype) c.p.v_dtype = p->dtype;
    if (!p->num_kv_heads) c.p.num_kv_heads = p->num_heads;
    c.k_row = (size_t)p->head_dim * bytes_of(p->k_dtype);
    c.v_row = p->v_in_k ? 0 : (size_t)p->head_dim_v * bytes_of(p->v_dtype);
    const size_t rows = rows_of(p), queries = (size_t)(p->batch * p->num_heads * p->seq_q);
    c.k = allocate(rows * c.k_row, o->huge);
    fill(c.k, rows * c.k_row);
    c.v = c.k;
    if (c.v_row) c.v = allocate(rows * c.v_row, o->huge), fill(c.v, rows * c.v_row);
    c.lists = p->batch * (p->kv_ids == ATTUNE_KV_IDS_QUERY ? p->seq_q : 1);
    c.ids = malloc((size_t)(LISTS * c.lists * p->num_ids) * sizeof *c.ids);
    if (!c.ids || attune_arguments_init(&c.arguments, p)) die("no call");
    for (int64_t i = 0; i < LISTS * c.lists; i++) draw(c.ids + i * p->num_ids, p->num_ids, p->seq_kv, !o->unsorted);
    if (p->page_size) {
        c.arguments.block_table = c.table = new_table(p);
        c.arguments.max_pages = pages_of(p), c.arguments.num_pages = p->batch * pages_of(p);
    }
    void *const q = allocate(queries * (size_t)p->head_dim * 4, false);
    fill(q, queries * (size_t)p->head_dim * bytes_of(p->dtype));
    c.arguments.q.data = q, c.arguments.k.data = c.k, c.arguments.v.data = c.v_row ? c.v : NULL;
    c.arguments.out.data = allocate(queries * (size_t)p->head_dim_v * 4, false);
    return c;
}

static const int32_t *next_ids(const call *c) {
    static int64_t number;
    return c->ids + number++ % LISTS * c->lists * c->p.num_ids;
}

/* ---- The loop that only reads ---- */

/* A word of each line brings the line. */
static uint64_t read_row(const char *row, size_t bytes) {
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += LINE) sum += *(const uint64_t *)(const void *)(row + at);
    return sum;
}

static void prefetch_row(const char *row, size_t bytes) {
    for (size_t at = 0; at < bytes; at += LINE) __builtin_prefetch(row + at);
}

/* As attention does: for each list and KV head, key by key. */
static uint64_t read_rows(const call *c, int distance) {
    const int32_t *const ids = next_ids(c);
    const attune_problem *p = &c->p;
    uint64_t sum = 0;
    for (int64_t list = 0; list < c->lists; list++) {
        const int32_t *const own = ids + list * p->num_ids;
        for (int64_t head = 0; head < p->num_kv_heads; head++) {
            const int64_t sequence = list * p->batch / c->lists;
            for (int64_t i = 0; i < p->num_ids; i++) {
                const size_t row = row_at(c, sequence, head, own[i]);
                const int64_t next = i + distance < p->num_ids ? i + distance : p->num_ids - 1;
                const size_t ahead = row_at(c, sequence, head, own[next]);
                if (distance) prefetch_row(c->k + ahead * c->k_row, c->k_row);
                if (distance && c->v_row) prefetch_row(c->v + ahead * c->v_row, c->v_row);
                sum += read_row(c->k + row * c->k_row, c->k_row);
                if (c->v_row) sum += read_row(c->v + row * c->v_row, c->v_row);
            }
        }
    }
    return sum;
}

/* ---- Rounds ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds, int count) {
    qsort(seconds, (size_t)count, sizeof *seconds, by_value);
    return seconds[count / 2];
}

static void measure(attune_context *context, const char *text, int count, char **schedules, const options *o) {
    const int rounds = o->rounds;
    static double seconds[NUM_DISTANCES + MOST_SCHEDULES][MOST_ROUNDS];
    static volatile uint64_t sink;
    attune_kernel *kernels[MOST_SCHEDULES];
    call c = open_call(text, o);
    for (int i = 0; i < count; i++)
        if (attune_compile(context, &c.p, schedules[i], &kernels[i])) die(schedules[i] ? schedules[i] : text);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < NUM_DISTANCES + count; i++) {
            c.arguments.kv_ids = next_ids(&c);
            const double begin = now();
            if (i < NUM_DISTANCES)
                sink += read_rows(&c, distances[i]);
            else if (attune_run(context, kernels[i - NUM_DISTANCES], &c.arguments))
                die(text);
            seconds[i][round] = now() - begin;
        }
    }
    const double bytes = (double)(c.lists * c.p.num_kv_heads * c.p.num_ids) * (double)(c.k_row + c.v_row);
    double reading = 1e9;
    for (int i = 0; i < NUM_DISTANCES; i++) {
        const double own = median(seconds[i], rounds);
        if (own < reading) reading = own;
    }
    printf("%s\n  %-32s %9.1f µs  %5.1f GB/s\n", text, "only reading", reading * 1e6, bytes / reading * 1e-9);
    for (int i = 0; i < count; i++) {
        const double own = median(seconds[NUM_DISTANCES + i], rounds);
        printf("  %-32s %9.1f µs  %5.1f GB/s  %3.0f %%\n", schedules[i] ? schedules[i] : "attune", own * 1e6,
               bytes / own * 1e-9, 100 * reading / own);
        attune_kernel_release(kernels[i]);
    }
    munmap(c.k, rows_of(&c.p) * c.k_row);
    if (c.v_row) munmap(c.v, rows_of(&c.p) * c.v_row);
    free(c.ids), free(c.table);
}

static const char *const usual[] = {
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=131072,head_dim=128,dtype=bf16,kv_ids=query,num_ids=2048",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=131072,head_dim=128,dtype=bf16,kv_ids=query,num_ids=2048,page_size=64",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=65536,head_dim=128,kv_ids=query,num_ids=2048",
    "num_heads=16,num_kv_heads=1,seq_q=1,seq_kv=131072,head_dim=576,head_dim_v=512,v_in_k=1,dtype=bf16,kv_ids=query,"
    "num_ids=2048",
    "num_heads=128,num_kv_heads=1,seq_q=1,seq_kv=131072,head_dim=576,head_dim_v=512,v_in_k=1,dtype=bf16,kv_ids=query,"
    "num_ids=2048,page_size=64"};

int main(int argc, char **argv) {
    attune_context_options of_context = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    char *chosen[] = {NULL};
    options o = {.rounds = 30};
    int at = 1;
    for (; at < argc && !strncmp(argv[at], "--", 2); at++) {
        if (!strcmp(argv[at], "--huge"))
            o.huge = true;
        else if (!strcmp(argv[at], "--unsorted"))
            o.unsorted = true;
        else if (!strcmp(argv[at], "--rounds") && at + 1 < argc)
            o.rounds = atoi(argv[++at]);
        else
            return fprintf(stderr, "Usage: listed [--huge] [--unsorted] [--rounds N] [PROBLEM [SCHEDULE…]]\n"), 2;
    }
    const int schedules = argc - at - 1;
    if (o.rounds < 1 || o.rounds > MOST_ROUNDS || schedules > MOST_SCHEDULES)
        return fprintf(stderr, "listed: at most %d rounds and %d schedules\n", MOST_ROUNDS, MOST_SCHEDULES), 2;
    of_context.max_workers = 1;
    if (attune_context_create(&of_context, &context)) die("no context");
    if (at < argc)
        measure(context, argv[at], schedules > 0 ? schedules : 1, schedules > 0 ? argv + at + 1 : chosen, &o);
    for (size_t i = 0; at == argc && i < sizeof usual / sizeof *usual; i++) measure(context, usual[i], 1, chosen, &o);
    attune_context_destroy(context);
    return 0;
}
