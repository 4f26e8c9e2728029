/* Text by a batch of requests: they join while there is room, and leave when they are done.
 *
 *     engine FOLDER [--threads N] [--sequences N] [--tokens N] [--keys N] [--save IMAGE] < REQUESTS
 *
 * A request is a line: how many tokens are wanted, then the prompt. An empty line, or the end, lets all that were read
 * begin. The answer is a line of tokens for each, in the order of the requests. It ends early with an end token of the
 * model. At most --sequences requests run at a time, with --keys tokens in the caches; the prompts of a
 * step have at most --tokens. --save writes an image of the model for the static engine (static/build.sh). */
#include "engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

void die(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "engine: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    exit(1);
}

void check(attune_status status) {
    if (status != ATTUNE_OK) die("%s", attune_last_message());
}

/* Weights and caches are on huge pages, where the system has these: every token reads them from memory. */
void *allocate(size_t bytes) {
    enum { CACHE_LINE = 64, HUGE_PAGE = 2 << 20 };
    const size_t unit = bytes < HUGE_PAGE ? CACHE_LINE : HUGE_PAGE, size = (bytes + unit) / unit * unit;
    void *const data = aligned_alloc(unit, size);
    if (!data) die("no memory for %zu bytes", bytes);
    if (unit == HUGE_PAGE) madvise(data, size, MADV_HUGEPAGE);
    return memset(data, 0, bytes);
}

/* ---- Requests ---- */

typedef struct request {
    int32_t *tokens;                     /* the prompt, then what was made */
    int32_t prompt, wanted, count, done; /* done: tokens whose keys are in the caches */
    int32_t *pages, num_pages;
} request;

typedef struct scheduler {
    runner runner;
    request *requests;
    size_t count, joined;                                    /* those before `joined` have begun */
    request *running[MOST_SEQUENCES], *step[MOST_SEQUENCES]; /* step: of this step */
    int32_t num_running, most_sequences, most_tokens;
    int32_t *free_pages;
    int64_t num_free, tokens_made, steps;
    bool is_over;
} scheduler;

/* Whole numbers of a line. */
static int32_t *read_line(char *line, int32_t *count) {
    int32_t *numbers = allocate((strlen(line) / 2 + 2) * sizeof *numbers);
    char *end = line;
    *count = 0;
    for (char *at = line;; at = end) {
        errno = 0;
        const long number = strtol(at, &end, 10);
        if (end == at) break;
        if (errno || number < 0 || number > INT32_MAX) die("'%.20s' is no token", at);
        numbers[(*count)++] = (int32_t)number;
    }
    end += strspn(end, " \n\r");
    if (*end) die("'%.*s' is no number", (int)strcspn(end, " \n\r"), end);
    return numbers;
}

static void read_request(scheduler *s, char *line) {
    int32_t count;
    int32_t *numbers = read_line(line, &count);
    if (count < 2 || numbers[0] < 1) die("a request is the number of tokens wanted, at least 1, and a prompt");
    s->requests = realloc(s->requests, (s->count + 1) * sizeof *s->requests);
    if (!s->requests) die("no memory for %zu requests", s->count + 1);
    request *q = &s->requests[s->count++];
    *q = (request){.prompt = count - 1, .wanted = numbers[0], .count = count - 1};
    q->tokens = allocate(((size_t)q->prompt + (size_t)q->wanted) * sizeof *q->tokens);
    memcpy(q->tokens, numbers + 1, (size_t)q->prompt * sizeof *q->tokens);
    q->num_pages = (int32_t)(((int64_t)q->prompt + q->wanted + PAGE - 1) / PAGE);
    q->pages = allocate((size_t)q->num_pages * sizeof *q->pages);
    free(numbers);
}

/* Those up to an empty line. false: there are none, and this is the end. */
static bool read_requests(scheduler *s) {
    char *line = NULL;
    size_t capacity = 0;
    bool is_end;
    while (!(is_end = getline(&line, &capacity, stdin) <= 0) && line[strspn(line, " \n\r")]) read_request(s, line);
    free(line);
    return s->count > 0 || !is_end;
}

static void check_requests(const scheduler *s) {
    const model *m = s->runner.model;
    for (const request *q = s->requests; q < s->requests + s->count; q++) {
        const int64_t tokens = (int64_t)q->prompt + q->wanted;
        if (tokens > m->positions)
            die("a request of %lld tokens; the model has %d positions", (long long)tokens, m->positions);
        if (q->num_pages > m->num_pages) die("a request of %lld tokens; --keys is less", (long long)tokens);
        if (q->prompt > s->most_tokens) die("a prompt of %d tokens; --tokens is %d", q->prompt, s->most_tokens);
        for (int32_t i = 0; i < q->prompt; i++)
            if (q->tokens[i] >= m->words) die("token %d; the model has %d", q->tokens[i], m->words);
    }
}

/* ---- Joining and leaving ---- */

static void leave(scheduler *s, request *q) {
    for (int32_t i = 0; i < q->num_pages; i++) s->free_pages[s->num_free++] = q->pages[i];
}

/* Those that are done leave; the others keep their order. */
static void drop_finished(scheduler *s) {
    int32_t kept = 0;
    for (int32_t i = 0; i < s->num_running; i++) {
        request *const q = s->running[i];
        const bool ended = q->count > q->prompt && model_ends(s->runner.model, q->tokens[q->count - 1]);
        if (q->count == q->prompt + q->wanted || ended)
            leave(s, q);
        else
            s->running[kept++] = q;
    }
    s->num_running = kept;
}

/* A request joins if there are pages for all that it will ever have, so that it never has to wait again. Returns how
 * many have joined. */
static int32_t join(scheduler *s) {
    int32_t joined = 0, tokens = 0;
    while (s->joined < s->count && s->num_running < s->most_sequences) {
        request *const q = &s->requests[s->joined];
        if (q->num_pages > s->num_free || (joined && tokens + q->prompt > s->most_tokens)) break;
        for (int32_t i = 0; i < q->num_pages; i++) q->pages[i] = s->free_pages[--s->num_free];
        tokens += q->prompt;
        s->running[s->num_running++] = q;
        s->step[joined++] = q;
        s->joined++;
    }
    return joined;
}

/* ---- Steps ---- */

/* The tokens of each request that the caches have not seen. */
static void fill_batch(scheduler *s, int32_t sequences) {
    batch *const b = &s->runner.batch;
    b->num_sequences = sequences;
    b->begins[0] = 0;
    for (int32_t i = 0; i < sequences; i++) {
        request *const q = s->step[i];
        const int32_t fresh = q->count - q->done;
        memcpy(b->tokens + b->begins[i], q->tokens + q->done, (size_t)fresh * sizeof *b->tokens);
        memcpy(b->pages + (size_t)i * (size_t)b->max_pages, q->pages, (size_t)q->num_pages * sizeof *b->pages);
        b->begins[i + 1] = b->begins[i] + fresh;
        b->lengths[i] = q->done = q->count;
    }
}

/* The prompts of those that have joined, all at once; or one more token of each request. */
static void plan(scheduler *s) {
    drop_finished(s);
    int32_t sequences = join(s);
    if (!sequences) {
        sequences = s->num_running;
        memcpy(s->step, s->running, (size_t)sequences * sizeof *s->step);
    }
    s->is_over = sequences == 0;
    if (s->is_over) return;
    fill_batch(s, sequences);
    runner_begin(&s->runner);
}

static void take_words(scheduler *s) {
    const batch *b = &s->runner.batch;
    for (int32_t i = 0; i < b->num_sequences; i++) s->step[i]->tokens[s->step[i]->count++] = b->next[i];
    s->tokens_made += b->num_sequences;
    s->steps++;
}

/* What each thread does. */
static void generate(void *user, int thread) {
    scheduler *const s = user;
    for (;;) {
        if (thread == 0) plan(s);
        team_barrier(&s->runner.team);
        if (s->is_over) return;
        runner_forward(&s->runner, thread);
        if (thread == 0) take_words(s);
    }
}

/* ---- The program ---- */

static int32_t option(int argc, char **argv, const char *name, int32_t otherwise, int32_t most) {
    for (int i = 2; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0) {
            otherwise = atoi(argv[i + 1]);
            if (otherwise < 1 || otherwise > most) die("%s must be from 1 to %d", name, most);
        }
    return otherwise;
}

static void check_options(int argc, char **argv) {
    static const char *const names[] = {"--threads", "--sequences", "--tokens", "--keys", "--save"};
    if (argc < 2 || argc % 2)
        die("usage: engine FOLDER [--threads N] [--sequences N] [--tokens N] [--keys N] [--save IMAGE] < REQUESTS");
    for (int i = 2; i < argc; i += 2) {
        bool is_known = false;
        for (int n = 0; n < 5; n++) is_known |= strcmp(argv[i], names[n]) == 0;
        if (!is_known) die("there is no option '%s'", argv[i]);
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void open_scheduler(scheduler *s, model *m, int argc, char **argv) {
    const int threads = option(argc, argv, "--threads", 1, 64);
    s->most_sequences = option(argc, argv, "--sequences", 8, MOST_SEQUENCES);
    s->most_tokens = option(argc, argv, "--tokens", 1024, 1 << 20);
    const int32_t pages = (option(argc, argv, "--keys", 4096, 1 << 24) + PAGE - 1) / PAGE;
    if (s->most_tokens < s->most_sequences) s->most_tokens = s->most_sequences;
    model_open(m, argv[1], pages);
    for (int i = 2; i < argc; i += 2)
        if (strcmp(argv[i], "--save") == 0) model_save(m, argv[i + 1]);
    runner_open(&s->runner, m, threads, s->most_tokens, pages);
    s->free_pages = allocate((size_t)pages * sizeof *s->free_pages);
    for (int32_t i = 0; i < pages; i++) s->free_pages[s->num_free++] = i;
}

static void answer(scheduler *s) {
    check_requests(s);
    s->joined = 0;
    s->tokens_made = s->steps = 0;
    const double begin = seconds();
    team_run(&s->runner.team, generate, s);
    const double time = seconds() - begin;
    fprintf(stderr, "%lld tokens in %lld steps, %.3f s, %.1f tokens/s\n", (long long)s->tokens_made,
            (long long)s->steps, time, (double)s->tokens_made / time);
    for (const request *q = s->requests; q < s->requests + s->count; q++)
        for (int32_t i = q->prompt; i < q->count; i++) printf("%d%c", q->tokens[i], i + 1 < q->count ? ' ' : '\n');
    fflush(stdout);
    for (request *q = s->requests; q < s->requests + s->count; q++) free(q->tokens), free(q->pages);
    s->count = 0;
}

int main(int argc, char **argv) {
    static scheduler s;
    model m;
    check_options(argc, argv);
    open_scheduler(&s, &m, argc, argv);
    while (read_requests(&s))
        if (s.count) answer(&s);
    runner_close(&s.runner);
    free(s.requests), free(s.free_pages);
    return 0;
}
