/* Steps of a server: ragged batches over pages, by a step plan, compared with their parts and with kernels for their
 * lengths.
 *
 *     steps [OPTION...] [ROW...]      all rows; or those whose names contain one of the words
 *       --threads=N  --page=N  --seconds=N (for each row; default 2)  --appends  --tier0  --i8  --read
 *       --extra=FIELDS                  more of the problem, as logits_soft_cap=50
 *       --fastest                       the fastest samples, for a busy machine
 *       --processor-time                instead of wall time, for a busy machine and one thread
 *
 * One line for each row and type, medians in microseconds of samples taken in turns:
 *     run      attune_attention_run
 *     plan     attune_step_plan_run of a plan that is there
 *     parts    the step's prompts alone and its decoding alone, each by a plan, added up; `x`: plan / parts
 *     tier0    with --tier0: that plan where nothing is compiled; `x`: plan / tier0, the share of the speed
 *     KiB      the workspace of that plan
 *     exact    where all sequences are alike: a kernel compiled for these lengths, without pages; `x`: plan / exact
 *     read     with --read: a loop that only reads the keys and values of all pages, whole pages in the order of the
 *              table, by as many threads; `share`: read / plan
 *     by one   with --read and several threads: the plan and that loop by one thread; `x`: how much faster several are
 */
#include <attune.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Rows ---- */

enum { MOST_GROUPS = 3, MOST_SEQUENCES = 256, MOST_SAMPLES = 2000, MOST_THREADS = 64 };

/* Sequences of q queries; their keys go evenly from `least` to `most`, new ones included. */
typedef struct group {
    int count, queries, least, most;
} group;

typedef struct row {
    const char *name;
    int heads, kv_heads, dim;
    group groups[MOST_GROUPS];
    bool is_mixed; /* the last group decodes, the others are prompts; they are shuffled together */
} row;

static const row rows[] = {
    {"decode 8 x 512", 32, 8, 128, {{8, 1, 512, 512}}, false},
    {"decode 8 x 2048", 32, 8, 128, {{8, 1, 2048, 2048}}, false},
    {"decode 32, 30 to 1500", 32, 8, 128, {{32, 1, 30, 1500}}, false},
    {"decode 1 x 4096", 32, 8, 128, {{1, 1, 4096, 4096}}, false},
    {"decode 1 x 32768", 32, 8, 128, {{1, 1, 32768, 32768}}, false},
    {"decode 1 x 131072", 32, 8, 128, {{1, 1, 131072, 131072}}, false},
    {"chunk 256 at 2048", 32, 8, 128, {{1, 256, 2304, 2304}}, false},
    {"chunk 512 at 4096", 32, 8, 128, {{1, 512, 4608, 4608}}, false},
    {"chunk 512 at 32768", 32, 8, 128, {{1, 512, 33280, 33280}}, false},
    {"mixed 256 at 1024 and 15 at 1000", 32, 8, 128, {{1, 256, 1280, 1280}, {15, 1, 1000, 1000}}, true},
    {"mixed 3 chunks of 512, 24 decodes", 32, 8, 128, {{3, 512, 1024, 2048}, {24, 1, 200, 3000}}, true},
    {"little 9/3x64: 128 at 500 and 7", 9, 3, 64, {{1, 128, 628, 628}, {7, 1, 500, 500}}, true},
    {"little 16/4x96: 90 and 20", 16, 4, 96, {{1, 90, 90, 90}, {20, 1, 100, 600}}, true},
    {"little 9/3x64: 3 of 16 and 40", 9, 3, 64, {{3, 16, 100, 300}, {40, 1, 50, 400}}, true},
    {"little 9/3x64: 12 of 40, 12 decodes", 9, 3, 64, {{12, 40, 100, 400}, {12, 1, 50, 400}}, true},
    {"tiny 9/3x64: 16 decodes at 30", 9, 3, 64, {{16, 1, 30, 30}}, false},
    {"tiny 4/1x64: 64 decodes, 10 to 800", 4, 1, 64, {{64, 1, 10, 800}}, false},
    {"verify 8 x 2 at 1024", 32, 8, 128, {{8, 2, 1024, 1024}}, false},
    {"verify 8 x 5 at 1024", 32, 8, 128, {{8, 5, 1024, 1024}}, false},
    {"verify 8 x 8 at 1024", 32, 8, 128, {{8, 8, 1024, 1024}}, false},
    {"verify 8 x 16 at 1024", 32, 8, 128, {{8, 16, 1024, 1024}}, false},
    {"verify 8 x 2 at 1024, group 1", 8, 8, 128, {{8, 2, 1024, 1024}}, false},
    {"verify 8 x 5 at 1024, group 1", 8, 8, 128, {{8, 5, 1024, 1024}}, false},
    {"verify 8 x 16 at 1024, group 1", 8, 8, 128, {{8, 16, 1024, 1024}}, false},
    {"verify 8 x 2 at 1024, group 8", 32, 4, 128, {{8, 2, 1024, 1024}}, false},
    {"verify 8 x 5 at 1024, group 8", 32, 4, 128, {{8, 5, 1024, 1024}}, false},
    {"verify 8 x 16 at 1024, group 8", 32, 4, 128, {{8, 16, 1024, 1024}}, false},
    {"verify 8 x 5 at 1024, 9/3x64", 9, 3, 64, {{8, 5, 1024, 1024}}, false},
    {"decode 8 x 2048, 8/4x256", 8, 4, 256, {{8, 1, 2048, 2048}}, false},
    {"chunk 256 at 2048, 8/4x256", 8, 4, 256, {{1, 256, 2304, 2304}}, false},
};

static struct {
    uint32_t threads;
    int page;
    double seconds;
    int appends, fastest, tier0, i8, read; /* i8: caches of i8 with scales of tokens */
    clockid_t clock;
    const char *extra; /* more of the problem; NULL: nothing */
} opt = {1, 16, 2, 0, 0, 0, 0, 0, CLOCK_MONOTONIC, NULL};

static void die(const char *what) {
    fprintf(stderr, "steps: %s: %s\n", what, attune_last_message());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(opt.clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static uint32_t random_number(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* ---- Tensors ---- */

typedef struct tensors {
    void *q, *k, *v, *k_cache, *v_cache, *out, *k_scale, *v_scale;
    int32_t *table;
    int64_t columns, pages;
} tensors;

/* Numbers from -1 to 1. */
static void *random_tensor(size_t count, attune_dtype dtype) {
    const size_t bytes = dtype == ATTUNE_BF16 ? 2 : 4;
    char *const all = aligned_alloc(64, (count * bytes + 4095) / 4096 * 4096);
    if (!all) die("no memory");
    for (size_t i = 0; i < count; i++) {
        const float x = (float)(random_number() % 20001) / 10000 - 1;
        memcpy(all + i * bytes, (const char *)&x + 4 - bytes, bytes);
    }
    return all;
}

/* A step's lists. */
typedef struct lists {
    int batch;
    int32_t starts[MOST_SEQUENCES + 1], lens[MOST_SEQUENCES], number[MOST_SEQUENCES];
} lists;

static void add(lists *l, int queries, int keys, int number) {
    l->starts[l->batch + 1] = l->starts[l->batch] + queries;
    l->lens[l->batch] = keys;
    l->number[l->batch++] = number;
}

/* which: 0 the whole, 1 the prompts, 2 the decoding part. Sequences keep their numbers, and so their pages. */
static lists lists_of(const row *r, int which) {
    struct {
        int queries, keys;
        bool decodes;
    } all[MOST_SEQUENCES];
    lists l = {0};
    int count = 0;
    for (int g = 0; g < MOST_GROUPS && r->groups[g].count; g++) {
        const group *const of = &r->groups[g];
        const bool is_last = g + 1 == MOST_GROUPS || !r->groups[g + 1].count;
        for (int i = 0; i < of->count; i++, count++) {
            all[count].queries = of->queries;
            all[count].keys = of->least + (of->count > 1 ? (of->most - of->least) * i / (of->count - 1) : 0);
            all[count].decodes = r->is_mixed && is_last;
        }
    }
    for (int i = 0; i < count; i++) { /* 7 is prime to all counts */
        const int at = count % 7 ? i * 7 % count : i;
        if (!which || all[at].decodes == (which == 2)) add(&l, all[at].queries, all[at].keys, i);
    }
    return l;
}

static tensors tensors_of(const row *r, const lists *l, attune_dtype dtype) {
    tensors t = {0};
    const size_t tokens = (size_t)l->starts[l->batch];
    for (int b = 0; b < l->batch; b++) {
        const int64_t pages = (l->lens[b] + opt.page - 1) / opt.page;
        if (pages > t.columns) t.columns = pages;
        t.pages += pages;
    }
    t.q = random_tensor(tokens * (size_t)(r->heads * r->dim), dtype);
    t.out = random_tensor(tokens * (size_t)(r->heads * r->dim), dtype);
    t.k = random_tensor(tokens * (size_t)(r->kv_heads * r->dim), dtype);
    t.v = random_tensor(tokens * (size_t)(r->kv_heads * r->dim), dtype);
    t.k_cache = random_tensor((size_t)t.pages * (size_t)(opt.page * r->kv_heads * r->dim), dtype);
    t.v_cache = random_tensor((size_t)t.pages * (size_t)(opt.page * r->kv_heads * r->dim), dtype);
    t.k_scale = random_tensor((size_t)(t.pages * opt.page * r->kv_heads), ATTUNE_F32);
    t.v_scale = random_tensor((size_t)(t.pages * opt.page * r->kv_heads), ATTUNE_F32);
    t.table = calloc((size_t)(l->batch * t.columns), sizeof *t.table);
    int32_t *const order = malloc((size_t)t.pages * sizeof *order);
    for (int64_t i = 0; i < t.pages; i++) order[i] = (int32_t)i;
    for (int64_t i = t.pages - 1; i > 0; i--) {
        const int64_t j = random_number() % (i + 1);
        const int32_t kept = order[i];
        order[i] = order[j], order[j] = kept;
    }
    int64_t next = 0;
    for (int b = 0; b < l->batch; b++)
        for (int64_t c = 0; c < (l->lens[b] + opt.page - 1) / opt.page; c++) t.table[b * t.columns + c] = order[next++];
    free(order);
    return t;
}

static void free_tensors(tensors *t) {
    void *const all[] = {t->q, t->k, t->v, t->k_cache, t->v_cache, t->out, t->table, t->k_scale, t->v_scale};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- The loop that only reads ---- */

typedef struct reader {
    const tensors *of;
    const lists *l;
    size_t key; /* bytes of K of a token */
    uint32_t number, count;
    uint64_t sum;
} reader;

static uint64_t read_bytes(const void *from, size_t bytes) {
    enum { AHEAD = 2048, LINE = 64, WORDS = LINE / 8 };
    const uint64_t *const words = from;
    uint64_t sums[WORDS] = {0}, sum = 0;
    for (size_t i = 0; i + LINE <= bytes; i += LINE) {
        __builtin_prefetch((const char *)from + i + AHEAD);
        for (size_t w = 0; w < WORDS; w++) sums[w] += words[i / 8 + w];
    }
    for (size_t w = 0; w < WORDS; w++) sum += sums[w];
    return sum;
}

/* Every `count`th page, from `number` on. */
static void *read_pages(void *argument) {
    reader *const r = argument;
    uint32_t page = 0;
    for (int b = 0; b < r->l->batch; b++)
        for (int64_t c = 0, left = r->l->lens[b]; left > 0; c++, left -= opt.page) {
            if (page++ % r->count != r->number) continue;
            const size_t at = (size_t)(r->of->table[b * r->of->columns + c] * opt.page) * r->key;
            const size_t bytes = (size_t)(left < opt.page ? left : opt.page) * r->key;
            r->sum += read_bytes((const char *)r->of->k_cache + at, bytes);
            r->sum += read_bytes((const char *)r->of->v_cache + at, bytes);
        }
    return NULL;
}

static uint64_t read_by(reader like, uint32_t threads) {
    pthread_t ids[MOST_THREADS];
    reader readers[MOST_THREADS];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < threads; i++) {
        readers[i] = like;
        readers[i].number = i, readers[i].count = threads;
        if (i && pthread_create(&ids[i], NULL, read_pages, &readers[i])) die("no thread");
    }
    read_pages(&readers[0]);
    for (uint32_t i = 1; i < threads; i++) pthread_join(ids[i], NULL);
    for (uint32_t i = 0; i < threads; i++) sum += readers[i].sum;
    return sum;
}

/* ---- What is timed ---- */

typedef enum what { RUN, PLAN, TIER0, PROMPTS, DECODING, EXACT, BY_ONE, READ, READ_BY_ONE, NUM_WHATS } what;

typedef struct timed {
    attune_context *context, *bare; /* the second one compiles nothing */
    attune_attention *attention, *of_tier0;
    attune_step_plan *plans[NUM_WHATS];
    attune_step steps[NUM_WHATS];
    attune_plan *exact;
    attune_arguments arguments;
    reader reader;
    volatile uint64_t sum; /* of what was read, so that it is */
    bool is_there[NUM_WHATS];
    double samples[NUM_WHATS][MOST_SAMPLES];
} timed;

static void call(timed *t, what w) {
    if (w == RUN && attune_attention_run(t->attention, &t->steps[w])) die("run");
    if (w == EXACT && attune_plan_run(t->exact, &t->arguments, NULL)) die("exact");
    if (w == READ || w == READ_BY_ONE) t->sum += read_by(t->reader, w == READ ? opt.threads : 1);
    if (t->plans[w] && attune_step_plan_run(t->plans[w], &t->steps[w])) die("plan");
}

static void plan_step(timed *t, const tensors *of, const lists *l, const lists *whole, int32_t *table, what w) {
    attune_step *const s = &t->steps[w];
    *s = (attune_step)ATTUNE_STEP_INIT;
    for (int b = 0; b < l->batch; b++) {
        int at = 0;
        while (whole->number[at] != l->number[b]) at++;
        memcpy(table + b * of->columns, of->table + at * of->columns, (size_t)of->columns * sizeof *table);
    }
    s->batch = l->batch;
    s->cu_seqlens_q = l->starts, s->kv_lens = l->lens;
    s->block_table = table, s->max_pages = of->columns, s->num_pages = of->pages;
    s->q.data = of->q, s->k.data = of->k, s->v.data = of->v, s->out.data = of->out;
    s->k_cache.data = of->k_cache, s->v_cache.data = of->v_cache;
    if (opt.i8) s->k_scale.data = of->k_scale, s->v_scale.data = of->v_scale;
    if (w == BY_ONE) s->max_threads = 1;
    attune_attention *const attention = w == TIER0 ? t->of_tier0 : t->attention;
    if (w != RUN && attune_step_plan_create(attention, s, &t->plans[w])) die("step plan");
    t->is_there[w] = true;
}

static void bind(timed *t, const char *name, void *data, attune_dtype dtype, int64_t batch, int64_t heads, int64_t seq,
                 int64_t dim) {
    int64_t shape[] = {batch, heads, seq, dim}, strides[] = {seq * heads * dim, dim, heads * dim, 1};
    const attune_dltensor tensor = {.data = data,
                                    .device_type = 1,
                                    .ndim = 4,
                                    .dtype_lanes = 1,
                                    .dtype_code = dtype == ATTUNE_BF16 ? 4 : 2,
                                    .dtype_bits = dtype == ATTUNE_BF16 ? 16 : 32,
                                    .shape = shape,
                                    .strides = strides};
    if (attune_plan_bind(t->exact, &t->arguments, name, &tensor)) die(name);
}

/* One kernel for these lengths, keys contiguous. */
static void make_exact(timed *t, const row *r, const tensors *of, attune_dtype dtype) {
    const group *const g = &r->groups[0];
    attune_problem p = ATTUNE_PROBLEM_INIT;
    p.batch = g->count, p.num_heads = r->heads, p.num_kv_heads = r->kv_heads, p.head_dim = r->dim;
    p.seq_q = g->queries, p.seq_kv = g->most, p.dtype = dtype, p.is_causal = 1;
    if (attune_plan_create(t->context, &p, NULL, &t->exact)) die("exact");
    if (attune_plan_arguments_init(t->exact, &t->arguments)) die("exact");
    bind(t, "q", of->q, dtype, g->count, r->heads, g->queries, r->dim);
    bind(t, "k", of->k_cache, dtype, g->count, r->kv_heads, g->most, r->dim);
    bind(t, "v", of->v_cache, dtype, g->count, r->kv_heads, g->most, r->dim);
    bind(t, "out", of->out, dtype, g->count, r->heads, g->queries, r->dim);
    t->is_there[EXACT] = true;
}

static int compare(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) * 2 - 1; }

static double median(timed *t, what w, int count) {
    qsort(t->samples[w], (size_t)count, sizeof(double), compare);
    return t->samples[w][opt.fastest ? 0 : count / 2];
}

static void measure(const row *r, attune_dtype dtype) {
    timed *const t = calloc(1, sizeof *t);
    const lists whole = lists_of(r, 0), prompts = lists_of(r, 1), decoding = lists_of(r, 2);
    tensors of = tensors_of(r, &whole, dtype);
    int32_t *const table = malloc((size_t)(3 * whole.batch * of.columns) * sizeof *table);
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.max_workers = opt.threads;
    if (attune_context_create(&options, &t->context)) die("context");
    attune_attention_desc d = ATTUNE_ATTENTION_DESC_INIT;
    d.num_heads = r->heads, d.num_kv_heads = r->kv_heads, d.head_dim = r->dim, d.dtype = dtype;
    d.is_causal = 1, d.kv = ATTUNE_KV_PAGED, d.page_size = opt.page, d.appends = opt.appends;
    d.extra = opt.extra;
    if (opt.i8) d.kv_dtype = ATTUNE_I8, d.kv_scales = ATTUNE_SCALES_TOKEN;
    if (attune_attention_create(t->context, &d, &t->attention)) die("attention");
    plan_step(t, &of, &whole, &whole, table, RUN);
    plan_step(t, &of, &whole, &whole, table, PLAN);
    if (opt.tier0) {
        options.compile_mode = ATTUNE_COMPILE_NEVER;
        options.cache_dir = "";
        if (attune_context_create(&options, &t->bare)) die("context");
        if (attune_attention_create(t->bare, &d, &t->of_tier0)) die("attention");
        plan_step(t, &of, &whole, &whole, table, TIER0);
    }
    if (r->is_mixed) {
        plan_step(t, &of, &prompts, &whole, table + whole.batch * of.columns, PROMPTS);
        plan_step(t, &of, &decoding, &whole, table + 2 * whole.batch * of.columns, DECODING);
    } else if (r->groups[0].least == r->groups[0].most && !opt.appends && !opt.tier0 && !opt.i8 && !opt.extra) {
        make_exact(t, r, &of, dtype);
    }
    if (opt.read) {
        const size_t key = (size_t)(r->kv_heads * r->dim) * (opt.i8 ? 1 : dtype == ATTUNE_BF16 ? 2 : 4);
        t->reader = (reader){.of = &of, .l = &whole, .key = key};
        t->is_there[READ] = true;
        t->is_there[READ_BY_ONE] = opt.threads > 1;
        if (opt.threads > 1) plan_step(t, &of, &whole, &whole, table, BY_ONE);
    }
    for (int i = 0; i < 4; i++) /* also lets a plan specialise */
        for (what w = 0; w < NUM_WHATS; w++)
            if (t->is_there[w]) call(t, w);
    int count = 0;
    for (const double end = now() + opt.seconds * 1e6; count < MOST_SAMPLES && (now() < end || count < 5); count++)
        for (what w = 0; w < NUM_WHATS; w++) {
            if (!t->is_there[w]) continue;
            const double begun = now();
            call(t, w);
            t->samples[w][count] = now() - begun;
        }
    double m[NUM_WHATS];
    size_t workspace;
    if (attune_step_plan_workspace_size(t->plans[PLAN], &t->steps[PLAN], &workspace)) die("workspace");
    for (what w = 0; w < NUM_WHATS; w++) m[w] = t->is_there[w] ? median(t, w, count) : 0;
    printf("%-34s %-4s run %9.1f plan %9.1f KiB %6.0f", r->name, dtype == ATTUNE_BF16 ? "bf16" : "f32", m[RUN], m[PLAN],
           (double)workspace / 1024);
    if (opt.tier0) printf(" tier0 %9.1f x %.2f", m[TIER0], m[PLAN] / m[TIER0]);
    if (r->is_mixed)
        printf(" parts %9.1f x %.2f (%.1f + %.1f)", m[PROMPTS] + m[DECODING], m[PLAN] / (m[PROMPTS] + m[DECODING]),
               m[PROMPTS], m[DECODING]);
    if (t->is_there[EXACT]) printf(" exact %9.1f x %.2f", m[EXACT], m[PLAN] / m[EXACT]);
    if (opt.read) printf(" read %9.1f share %.2f", m[READ], m[READ] / m[PLAN]);
    if (t->is_there[BY_ONE])
        printf(" by one: plan %9.1f x %.2f read %9.1f x %.2f", m[BY_ONE], m[BY_ONE] / m[PLAN], m[READ_BY_ONE],
               m[READ_BY_ONE] / m[READ]);
    printf("\n");
    fflush(stdout);
    for (what w = 0; w < NUM_WHATS; w++) attune_step_plan_destroy(t->plans[w]);
    attune_attention_destroy(t->attention);
    attune_attention_destroy(t->of_tier0);
    if (t->exact) attune_plan_destroy(t->exact);
    attune_context_destroy(t->context);
    attune_context_destroy(t->bare);
    free(table);
    free_tensors(&of);
    free(t);
}

static bool is_wanted(const row *r, int count, char **words) {
    for (int i = 0; i < count; i++)
        if (strstr(r->name, words[i])) return true;
    return count == 0;
}

int main(int argc, char **argv) {
    int first = 1;
    for (; first < argc && !strncmp(argv[first], "--", 2); first++) {
        const char *const value = strchr(argv[first], '=');
        if (!strncmp(argv[first], "--threads=", 10))
            opt.threads = (uint32_t)atoi(value + 1);
        else if (!strncmp(argv[first], "--page=", 7))
            opt.page = atoi(value + 1);
        else if (!strncmp(argv[first], "--seconds=", 10))
            opt.seconds = atof(value + 1);
        else if (!strncmp(argv[first], "--extra=", 8))
            opt.extra = value + 1;
        else if (!strcmp(argv[first], "--appends"))
            opt.appends = 1;
        else if (!strcmp(argv[first], "--processor-time"))
            opt.clock = CLOCK_PROCESS_CPUTIME_ID;
        else if (!strcmp(argv[first], "--i8"))
            opt.i8 = 1;
        else if (!strcmp(argv[first], "--tier0"))
            opt.tier0 = 1;
        else if (!strcmp(argv[first], "--read"))
            opt.read = 1;
        else if (!strcmp(argv[first], "--fastest"))
            opt.fastest = 1;
        else
            return fprintf(stderr, "steps: %s is no option\n", argv[first]), 2;
    }
    if (opt.threads < 1 || opt.threads > MOST_THREADS) return fprintf(stderr, "steps: --threads is 1 to 64\n"), 2;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int d = 0; d < 2; d++)
            if (is_wanted(&rows[i], argc - first, argv + first)) measure(&rows[i], d ? ATTUNE_F32 : ATTUNE_BF16);
    return 0;
}
