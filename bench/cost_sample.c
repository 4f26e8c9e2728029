/* Times schedules of problems, for cost_fit.c: what the constants of src/schedule/cost.def are fitted to, and how far a
 * choice is from the best schedule known. cost.py runs both.
 *
 * A line of stdin is a problem, perhaps followed by schedules, all with tabs between them. Of each problem are timed
 * the choice without tuning, the cheapest schedule of each strategy, those that differ from these by a step, cheap ones
 * and some of the others, in turns with the choice; the best of them five times more. A line of stdout is a target, a
 * class of machines, a problem, a schedule and microseconds, with tabs between them.
 *
 * All is compiled before anything is timed. On a machine with other work, --alone names a command that stops the rest:
 * it writes a line when nothing else runs, and ends when its input ends. Timing goes by pieces of some seconds
 * (--piece), each within one run of that command. */
#include "common/tensors.h"

#include "schedule/schedule.h"
#include "tune/candidates.h"
#include "tune/space.h"

#include <argp.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 400, MOST_PROBLEMS = 1000, MOST_SCHEDULES = 1 << 18, LINE_BYTES = 1 << 16 };

typedef struct entry {
    mha_schedule schedule;
    attune_kernel *kernel; /* NULL: it did not compile */
    double ratio;          /* to the time of the choice; infinite: not timed */
} entry;

typedef struct subject {
    char *text;
    attune_problem problem, canonical;
    entry entries[MOST]; /* the choice first, until they are put in order */
    size_t count, most;
} subject;

typedef struct sampler {
    attune_context *context;
    mha_machine machine;
    tune_candidate *list;
    subject *subjects[MOST_PROBLEMS];
    size_t count, most; /* most: schedules of a problem */
    const char *alone;  /* a command while which nothing else runs; NULL: none is needed */
    int64_t piece;      /* seconds of a run of it */
    uint64_t random;
} sampler;

static void *allocate(size_t bytes) {
    void *const memory = calloc(1, bytes);
    if (!memory) {
        fputs("cost_sample: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* ---- Which schedules ---- */

static void add(subject *j, const mha_schedule *schedule) {
    if (j->count == j->most) return;
    for (size_t i = 0; i < j->count; i++)
        if (mha_schedule_same(&j->entries[i].schedule, schedule)) return;
    j->entries[j->count++] = (entry){.schedule = *schedule, .ratio = INFINITY};
}

static double next_random(sampler *s) {
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(s->random >> 33) / (double)(UINT64_C(1) << 31);
}

/* Whether a strategy may be worth its time: d-lanes of up to 64 rows for each head of K and V. */
static bool is_of_use(const subject *j, const mha_schedule *schedule) {
    enum { MOST_ROWS = 64 };
    const attune_problem *p = &j->canonical;
    const int64_t rows = p->seq_q > 0 ? p->seq_q * (p->num_heads / p->num_kv_heads) : INT32_MAX;
    return schedule->strategy == MHA_Q_LANES || rows <= MOST_ROWS || p->integer;
}

static void add_neighbours(sampler *s, subject *j, const mha_schedule *schedule) {
    enum { ROOM = 512 };
    tune_candidate around[ROOM];
    const size_t count = tune_neighbours(&j->canonical, &s->machine, schedule, around, ROOM);
    for (size_t i = 0; i < count; i++) add(j, &around[i].schedule);
}

/* Of one strategy, up to `most` in all: the cheapest, its neighbours, the next cheap ones, and others, more of the
 * cheaper ones. The list is in the order of costs. */
static void add_strategy(sampler *s, subject *j, mha_strategy strategy, size_t legal, size_t most) {
    size_t count = 0;
    for (size_t i = 0; i < legal; i++)
        if (s->list[i].schedule.strategy == strategy && is_of_use(j, &s->list[i].schedule))
            s->list[count++] = s->list[i];
    if (!count) return;
    const size_t room = j->count + most;
    j->most = room;
    add(j, &s->list[0].schedule);
    add_neighbours(s, j, &s->list[0].schedule);
    const size_t left = j->count < room ? room - j->count : 0;
    for (size_t i = 1; i < left / 2 && i < count; i++) add(j, &s->list[i].schedule);
    for (size_t i = 0; i < 4 * left && j->count < room; i++) {
        const double drawn = next_random(s);
        add(j, &s->list[(size_t)(drawn * drawn * drawn * (double)count)].schedule);
    }
}

static void add_schedules(sampler *s, subject *j) {
    const mha_schedule choice = j->entries[0].schedule;
    add_neighbours(s, j, &choice);
    for (int strategy = MHA_Q_LANES; strategy <= MHA_D_LANES; strategy++) {
        const size_t legal = tune_space(&j->canonical, &s->machine, s->list, MOST_SCHEDULES);
        add_strategy(s, j, (mha_strategy)strategy, legal, s->most / 2);
    }
}

static void add_given(const sampler *s, subject *j, char *schedules) {
    for (char *text = strtok(schedules, "\t"); text; text = strtok(NULL, "\t")) {
        mha_schedule parsed = {0}, settled;
        const mha_schedule *schedule = &parsed;
        at_error err = {0};
        if (mha_schedule_parse(text, &parsed, &err) ||
            mha_schedule_in(&schedule, &settled, &j->canonical, s->machine.target, &err))
            fprintf(stderr, "cost_sample: %s: %s\n", j->text, err.message);
        else
            add(j, schedule);
    }
}

/* ---- Compiling ---- */

typedef struct job {
    const sampler *sampler;
    subject *subject;
    atomic_size_t next;
} job;

static void *compile_entries(void *argument) {
    job *b = argument;
    for (size_t i = b->next++; i < b->subject->count; i = b->next++) {
        entry *e = &b->subject->entries[i];
        at_error err = {0};
        at_kernel_make_uncached(b->sampler->context, at_attention_of(&b->subject->canonical), &e->schedule, &e->kernel,
                                &err);
    }
    return NULL;
}

static void compile(const sampler *s, subject *j) {
    job b = {.sampler = s, .subject = j};
    pthread_t other;
    const bool has_other = !pthread_create(&other, NULL, compile_entries, &b);
    compile_entries(&b);
    if (has_other) pthread_join(other, NULL);
}

static void open_subject(sampler *s, char *line) {
    at_error err = {0};
    char *const tab = strchr(line, '\t');
    if (tab) *tab = 0;
    subject *const j = allocate(sizeof *j);
    j->text = strdup(line);
    j->most = MOST;
    if (!problem_from_text(line, &j->problem)) exit(2);
    if (mha_canonicalize(&j->problem, &j->canonical, &err)) {
        fprintf(stderr, "cost_sample: %s: %s\n", line, err.message);
        exit(2);
    }
    mha_schedule choice;
    mha_choose(mha_read(&j->canonical), s->machine.target, s->machine.description, &choice);
    add(j, &choice);
    if (tab)
        add_given(s, j, tab + 1);
    else
        add_schedules(s, j);
    compile(s, j);
    s->subjects[s->count++] = j;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%zu problems ", s->count);
}

/* ---- Timing ---- */

static void sample(const tune_runner *runner, const attune_kernel *kernel, tune_times *times) {
    at_error err = {0};
    tune_runner *const r = (tune_runner *)runner;
    if (!tune_runner_time(r, kernel, times, &err)) return;
    fprintf(stderr, "cost_sample: %s\n", err.message);
    exit(1);
}

/* The shorter of two samples beside the shorter of two of the choice, whose shortest is *usual. */
static double ratio_of(const tune_runner *runner, const attune_kernel *choice, const attune_kernel *kernel,
                       double *usual) {
    tune_times mine = {0}, other = {0};
    if (!kernel) return INFINITY;
    sample(runner, kernel, &(tune_times){0});
    for (int i = 0; i < 2; i++) {
        sample(runner, choice, &other);
        sample(runner, kernel, &mine);
    }
    *usual = fmin(*usual, tune_times_sum(&other));
    return tune_times_sum(&mine) / tune_times_sum(&other);
}

static int by_ratio(const void *x, const void *y) {
    const entry *a = x, *b = y;
    return (a->ratio > b->ratio) - (a->ratio < b->ratio);
}

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Returns seconds of a sample of the choice. The best go five rounds more, each of all of them, and have the median. */
static double time_entries(subject *j, const tune_runner *runner) {
    enum { ROUNDS = 5, BEST = 16 };
    const attune_kernel *const choice = j->entries[0].kernel;
    double usual = INFINITY, ratios[BEST][ROUNDS];
    for (size_t i = 0; i < j->count; i++) j->entries[i].ratio = ratio_of(runner, choice, j->entries[i].kernel, &usual);
    qsort(j->entries, j->count, sizeof *j->entries, by_ratio);
    const size_t best = j->count < BEST ? j->count : BEST;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < best; i++) ratios[i][round] = ratio_of(runner, choice, j->entries[i].kernel, &usual);
    for (size_t i = 0; i < best; i++) {
        qsort(ratios[i], ROUNDS, sizeof ratios[i][0], by_value);
        j->entries[i].ratio = ratios[i][ROUNDS / 2];
    }
    return usual;
}

static void print_entries(const sampler *s, const subject *j, double microseconds) {
    for (size_t i = 0; i < j->count; i++) {
        const entry *e = &j->entries[i];
        if (!isfinite(e->ratio)) continue;
        printf("%s\t%s\t%s\t%s\t%.4f\n", s->machine.target->name, s->context->machine_class.name, j->text,
               mha_schedule_text(&e->schedule).text, e->ratio * microseconds);
    }
    fflush(stdout);
}

/* A call's pages: those of all keys. */
static call_sizes sizes_of(const attune_problem *p) {
    call_sizes sizes = CALL_SIZES_NONE;
    const int64_t size = p->page_size;
    if (!size || p->seq_kv < 1) return sizes;
    sizes.max_pages = (p->seq_kv + size - 1) / size;
    sizes.num_pages = p->batch * sizes.max_pages;
    return sizes;
}

static void time_subject(const sampler *s, subject *j) {
    enum { BRIEF = 4 }; /* milliseconds of a call that is timed whole */
    tensors t;
    attune_arguments arguments;
    tune_runner runner = {0};
    at_error err = {0};
    const call_sizes sizes = sizes_of(&j->canonical);
    if (!j->entries[0].kernel || !tensors_create_sized(&t, &j->problem, &sizes)) exit(1);
    t.fills_up = true;
    if (!tensors_fill(&t, INPUT_ORDINARY, 1)) exit(1);
    tensors_arguments(&t, &arguments);
    const tune_task task = {at_attention_of(&j->canonical), .arguments = &arguments};
    if (tune_runner_init(&runner, s->context, &task, &err) ||
        tune_runner_calibrate(&runner, j->entries[0].kernel, &err)) {
        fprintf(stderr, "cost_sample: %s: %s\n", j->text, err.message);
        exit(1);
    }
    if (runner.whole < BRIEF * 1e-3) runner.share = 1;
    const double seconds = time_entries(j, &runner);
    print_entries(s, j, seconds / (double)runner.repeats * 1e6);
    tune_runner_free(&runner);
    tensors_free(&t);
}

/* ---- Pieces in which nothing else runs ---- */

typedef struct piece {
    pid_t pid; /* 0: none has begun */
    int input; /* of the command */
    time_t end;
} piece;

_Noreturn static void run_command(const char *command, const int input[2], const int output[2]) {
    dup2(input[0], STDIN_FILENO);
    dup2(output[1], STDOUT_FILENO);
    close(input[1]);
    close(output[0]);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

/* Returns when the command has written a line. */
static piece begin_piece(const sampler *s) {
    int input[2], output[2];
    char said = 0;
    if (pipe(input) || pipe(output)) exit(1);
    const pid_t pid = fork();
    if (!pid) run_command(s->alone, input, output);
    close(input[0]);
    close(output[1]);
    while (pid > 0 && said != '\n' && read(output[0], &said, 1) == 1) continue;
    close(output[0]);
    if (said == '\n') return (piece){pid, input[1], time(NULL) + s->piece};
    fprintf(stderr, "cost_sample: %s: it wrote no line\n", s->alone);
    exit(1);
}

static void end_piece(piece *p) {
    if (!p->pid) return;
    close(p->input);
    waitpid(p->pid, NULL, 0);
    p->pid = 0;
}

static void time_all(const sampler *s) {
    piece now = {0};
    for (size_t i = 0; i < s->count; i++) {
        if (now.pid && time(NULL) >= now.end) end_piece(&now);
        if (s->alone && !now.pid) now = begin_piece(s);
        time_subject(s, s->subjects[i]);
    }
    end_piece(&now);
}

/* ---- Arguments ---- */

static error_t parse(int key, char *argument, struct argp_state *state) {
    sampler *const s = state->input;
    switch (key) {
    case 'n': s->most = (size_t)tool_parse_integer(state, "schedules", argument, 2, MOST / 2); return 0;
    case 'a': s->alone = argument; return 0;
    case 'p': s->piece = tool_parse_integer(state, "piece", argument, 1, INT32_MAX); return 0;
    case 's': s->random = (uint64_t)tool_parse_integer(state, "seed", argument, 1, INT32_MAX); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"schedules", 'n', "N", 0, "Of a problem that names none (default 60)", 0},
        {"alone", 'a', "COMMAND", 0, "Time while this runs, which writes a line when it has stopped all else", 0},
        {"piece", 'p', "SECONDS", 0, "Of a run of that command (default 30)", 0},
        {"seed", 's', "N", 0, "Of those that are drawn (default 1)", 0},
        {0},
    };
    static const struct argp argp = {options, parse, NULL, "Times schedules of the problems of stdin.",
                                     NULL,    NULL,  NULL};
    const attune_context_options one = {.struct_size = sizeof one, .cache_dir = "", .cache_base = "", .max_workers = 1};
    sampler s = {.most = 60, .random = 1, .piece = 30};
    char *const line = allocate(LINE_BYTES);
    argp_parse(&argp, argc, argv, 0, NULL, &s);
    if (attune_context_create(&one, &s.context)) {
        fprintf(stderr, "cost_sample: %s\n", attune_last_message());
        return 1;
    }
    s.machine = tune_machine_of(s.context);
    s.list = allocate(MOST_SCHEDULES * sizeof *s.list);
    while (s.count < MOST_PROBLEMS && fgets(line, LINE_BYTES, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (*line) open_subject(&s, line);
    }
    time_all(&s);
    return 0;
}
