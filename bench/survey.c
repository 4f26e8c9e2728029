/* Measures the problems that its input lists, for cliffs.py and roofline.py, which decide what is measured. A line is a
 * problem, and after a blank the sizes that it leaves to the call; an empty line, or the end, closes a group, whose
 * problems are measured in interleaved rounds before the next group is read. Nothing is tuned, and lengths in tables
 * are drawn. The first line of the output is the machine. Each later one is a problem, in the order of the input: what
 * was measured of it, or that it could not be.
 *
 *     survey [--threads N] [--rounds N] [--probe]
 *
 * Without --probe a round is the best of a few short samples of each problem. With it the peak and the bandwidth are
 * probed beside each sample, as `attune bench` does. */
#include "measure/bench.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 1000 };

typedef struct survey {
    uint32_t threads;
    size_t rounds;
    bool has_probes;
    attune_context *context;
    attune_machine_info machine;
} survey;

/* Problems as they were read. */
typedef struct group {
    char **lines;
    size_t count, capacity;
} group;

static bool say(json_t *object) {
    const bool good = object && json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6)) == 0;
    json_decref(object);
    putchar('\n');
    return fflush(stdout) == 0 && good;
}

/* ---- Rounds ---- */

/* Microseconds of a call: the best of a few samples, so that one which was disturbed does not count. */
static bool best_sample(const survey *s, const bench_case *c, double *us) {
    enum { SAMPLES = 4 };
    const int64_t calls = c->calls / SAMPLES + 1;
    for (int sample = 0; sample < SAMPLES; sample++) {
        const double start = tool_now_us();
        for (int64_t i = 0; i < calls; i++)
            if (attune_run(s->context, c->kernel, &c->arguments)) {
                tool_library_error(c->text);
                return false;
            }
        const double taken = (tool_now_us() - start) / (double)calls;
        if (!sample || taken < *us) *us = taken;
    }
    return true;
}

/* There and back by turns, so that no problem always comes after the same one. A problem whose call fails has no
 * samples, and is left out from there on. */
static bool plain_rounds(const survey *s, bench_case *list, size_t count) {
    for (size_t round = 0; round < s->rounds; round++)
        for (size_t i = 0; i < count; i++) {
            bench_case *const c = &list[round % 2 ? count - 1 - i : i];
            if (c->count != round) continue;
            c->count = best_sample(s, c, &c->samples_us[round]) ? round + 1 : 0;
        }
    return true;
}

static bool probed_rounds(const survey *s, bench_case *list, size_t count) {
    bench_probes probes = {0};
    bool good = bench_open_probes(&probes, list, count, s->machine.isa, s->threads) &&
                bench_rounds(list, count, s->context, &probes, s->threads, s->rounds);
    bench_close_probes(&probes);
    return good;
}

/* ---- Results ---- */

static json_t *numbers(const double *values, size_t count) {
    json_t *const array = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(array, json_real(values[i]));
    return array;
}

static json_t *describe(const survey *s, const char *line, const bench_case *c) {
    if (!c->count) return json_pack("{s:s, s:s}", "problem", line, "error", "it could not be measured");
    json_t *const object =
        json_pack("{s:s, s:s, s:s, s:f, s:f, s:I, s:o}", "problem", line, "canonical", c->text, "schedule", c->schedule,
                  "flops", c->work.flops, "bytes", c->work.bytes, "workspace", (json_int_t)c->workspace_bytes, "us",
                  numbers(c->samples_us, c->count));
    if (!s->has_probes || !object) return object;
    json_t *const probed = json_pack("{s:s, s:o, s:o}", "peak_dtype", tool_dtype_name(c->peak_dtype), "peaks",
                                     numbers(c->peaks, c->count), "bandwidths", numbers(c->bandwidths, c->count));
    json_object_update(object, probed);
    json_decref(probed);
    return object;
}

/* ---- Groups ---- */

static bool open_case(const survey *s, const char *line, bench_case *c) {
    call_sizes sizes = CALL_SIZES_NONE;
    const size_t length = strcspn(line, " ");
    char *const problem = strndup(line, length);
    c->draws_lengths = true;
    const bool good = problem && problem_from_text(problem, &c->problem) &&
                      (!line[length] || sizes_parse(line + length + 1, &sizes)) &&
                      bench_open(c, s->context, ATTUNE_ENGINE_JIT, &sizes, s->rounds);
    free(problem);
    return good;
}

/* A case that cannot be opened stays empty, and is left out of the rounds. */
static size_t open_group(const survey *s, const group *g, bench_case *list, size_t *place) {
    size_t opened = 0;
    for (size_t i = 0; i < g->count; i++) {
        bench_case *const c = &list[opened];
        place[i] = g->count; /* the empty case at the end */
        if (open_case(s, g->lines[i], c)) {
            place[i] = opened++;
        } else {
            bench_close(c);
            *c = (bench_case){.text = NULL};
        }
    }
    return opened;
}

/* Kernels are compiled on all CPUs, and run on those of --threads. */
static bool measure_group(const survey *s, const group *g) {
    bench_case *const list = calloc(g->count + 1, sizeof *list);
    size_t *const place = calloc(g->count + 1, sizeof *place);
    bool good = list && place;
    const size_t opened = good ? open_group(s, g, list, place) : 0;
    if (opened)
        good =
            bench_pin(s->threads) && (s->has_probes ? probed_rounds : plain_rounds)(s, list, opened) && bench_unpin();
    for (size_t i = 0; good && i < g->count; i++) good = say(describe(s, g->lines[i], &list[place[i]]));
    for (size_t i = 0; i < opened; i++) bench_close(&list[i]);
    free(list);
    free(place);
    return good;
}

static void clear(group *g) {
    for (size_t i = 0; i < g->count; i++) free(g->lines[i]);
    g->count = 0;
}

static bool add(group *g, const char *line) {
    if (g->count == g->capacity) {
        const size_t capacity = g->capacity ? 2 * g->capacity : 64;
        char **const lines = realloc(g->lines, capacity * sizeof *lines);
        if (!lines) return false;
        g->lines = lines;
        g->capacity = capacity;
    }
    return (g->lines[g->count] = strdup(line)) && ++g->count;
}

static bool measure_all(const survey *s) {
    group g = {0};
    char *line = NULL;
    size_t size = 0;
    bool good = true;
    while (good && getline(&line, &size, stdin) > 0) {
        line[strcspn(line, "\n")] = '\0';
        good = *line ? add(&g, line) : measure_group(s, &g);
        if (!*line) clear(&g);
    }
    good = good && measure_group(s, &g);
    clear(&g);
    free(g.lines);
    free(line);
    return good;
}

/* ---- Arguments ---- */

static const struct argp_option arguments_of[] = {
    {"threads", 't', "N", 0, "Threads that run a kernel, each on a CPU of its own (default 1)", 0},
    {"rounds", 'r', "N", 0, "Samples of each problem (default 5)", 0},
    {"probe", 'p', NULL, 0, "Probe peak and bandwidth beside each sample", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    survey *const s = state->input;
    switch (key) {
    case 't': s->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case 'r': s->rounds = (size_t)tool_parse_integer(state, "rounds", argument, 1, MOST_ROUNDS); return 0;
    case 'p': s->has_probes = true; return 0;
    case ARGP_KEY_ARG: argp_usage(state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static bool say_machine(const survey *s) {
    return say(json_pack("{s:s, s:s, s:s, s:s, s:s}", "cpu", s->machine.cpu_description, "isa", s->machine.isa, "class",
                         s->machine.machine, "llvm", s->machine.llvm, "version", attune_version()));
}

int main(int argc, char **argv) {
    static const struct argp argp = {
        arguments_of, parse, NULL, "Measures the problems that the input lists, in groups.", NULL, NULL, NULL};
    survey s = {.threads = 1, .rounds = 5, .machine = {.struct_size = sizeof s.machine}};
    argp_parse(&argp, argc, argv, 0, NULL, &s);
    const tool_common common = {0};
    s.context = tool_open_context(&common, s.threads, NULL);
    if (!s.context) return TOOL_FAILED;
    bool good = attune_get_machine_info(s.context, &s.machine) == ATTUNE_OK;
    if (!good) tool_library_error("the machine");
    good = good && say_machine(&s) && measure_all(&s);
    attune_context_destroy(s.context);
    return good ? TOOL_OK : TOOL_FAILED;
}
