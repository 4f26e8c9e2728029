/* The table of docs/numerics.md: the distance of each combination of types from f64, beside a plain implementation. */
#include "check/check_case.h"
#include "common/json_output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Types and problems ---- */

typedef struct types {
    const char *name, *fields;
    bool has_cache; /* a block has these types in its caches only */
} types;

static const types all_types[] = {
    {"f32", "", false},
    {"f64", ",dtype=f64", false},
    {"f16", ",dtype=f16", false},
    {"bf16", ",dtype=bf16", false},
    {"f32, K and V bf16", ",kv_dtype=bf16", true},
    {"f32, K and V f16", ",kv_dtype=f16", true},
    {"bf16, K and V f16", ",dtype=bf16,kv_dtype=f16", true},
    {"f32, i8 by head", ",kv_dtype=i8", true},
    {"f32, i8 by token", ",kv_dtype=i8,kv_scales=token", true},
    {"f32, i8 inline", ",kv_dtype=i8,kv_scales=inline", true},
    {"f32, i4 by group", ",kv_dtype=i4", true},
    {"f32, i4 inline", ",kv_dtype=i4,kv_scales=inline", true},
    {"f32, f8", ",kv_dtype=f8", true},
    {"f32, f8 by token", ",kv_dtype=f8,kv_scales=token", true},
    {"bf16, i8 by token", ",dtype=bf16,kv_dtype=i8,kv_scales=token", true},
    {"bf16, f8 by head", ",dtype=bf16,kv_dtype=f8,kv_scales=head", true},
    {"f64, i8 by token", ",dtype=f64,kv_dtype=i8,kv_scales=token", true},
};
/* Types that only a block's weights have. */
static const types block_types[] = {
    {"f32, weights bf16", ",w_dtype=bf16", false},
    {"f32, weights f16", ",w_dtype=f16", false},
    {"bf16, weights f32", ",dtype=bf16,w_dtype=f32", false},
};

typedef struct work {
    const char *name;
    const char *problems[4];
} work;

static const work prefill = {"many queries",
                             {"num_heads=8,seq_q=16,head_dim=32", "num_heads=4,seq_q=128,head_dim=64",
                              "num_heads=4,num_kv_heads=2,seq_q=197,head_dim=80,is_causal=1",
                              "num_heads=2,seq_q=64,seq_kv=1000,head_dim=128"}};
static const work decode = {"one query",
                            {"num_heads=4,seq_q=1,seq_kv=77,head_dim=40",
                             "batch=4,num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=512,head_dim=64",
                             "num_heads=8,num_kv_heads=1,seq_q=1,seq_kv=4096,head_dim=128", NULL}};
static const work block = {"block",
                           {"embed_dim=64,num_heads=4,seq_q=33", "embed_dim=256,num_heads=4,seq_q=128,is_causal=1",
                            "embed_dim=768,num_heads=12,num_kv_heads=4,seq_q=24", NULL}};
/* Nothing is appended: a number in the middle of two quantised values, or of two of bf16, may become either. */
static const work cached = {"block over a cache",
                            {"batch=4,embed_dim=128,num_heads=4,seq_q=1,kv_projected=1,seq_kv=100",
                             "batch=3,embed_dim=512,num_heads=8,num_kv_heads=2,seq_q=2,kv_projected=1,seq_kv=300",
                             "embed_dim=256,num_heads=4,seq_q=40,kv_projected=1,seq_kv=90", NULL}};

/* ---- Measuring ---- */

enum { NUM_SEEDS = 3 };

/* One pass over everything. */
typedef struct measuring {
    check_machine *machine;
    uint32_t isa;
    uint64_t seed;
    double max_flops;
    int missed;   /* rows that are worse than promised */
    json_t *rows; /* NULL: they are printed */
} measuring;

/* Codes that lie in blocks of columns, which some heads are no multiple of. */
static bool by_blocks(const types *t) { return strstr(t->fields, "=i4") || strstr(t->fields, "=inline"); }

static bool is_possible(const char *text) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    return attune_problem_parse(&p, text) == ATTUNE_OK && attune_problem_check(&p) == ATTUNE_OK;
}

static bool measure(const measuring *m, const work *w, const types *t, input_kind inputs, check_errors *sum) {
    for (size_t i = 0; i < sizeof w->problems / sizeof *w->problems && w->problems[i]; i++) {
        char text[256], reason[ATTUNE_MESSAGE_BYTES];
        check_case c = {.isa = m->isa, .threads = 1, .inputs = inputs, .sizes = CALL_SIZES_NONE};
        snprintf(text, sizeof text, "%s%s", w->problems[i], t->fields);
        if (by_blocks(t) && !is_possible(text)) continue;
        if (!problem_from_text(text, &c.problem)) return false;
        problem_fill_defaults(&c.problem);
        if (attune_problem_flops(&c.problem) > m->max_flops) continue;
        for (c.seed = m->seed; c.seed < m->seed + NUM_SEEDS; c.seed++) {
            check_errors own = {0};
            if (check_measure(m->machine, &c, &own, reason) == CHECK_PASSED) {
                check_add_errors(sum, &own);
                continue;
            }
            tool_error("%s: %s", text, reason);
            return false;
        }
    }
    return true;
}

static double ratio_of(double attune, double plain) { return attune == plain ? 1 : attune / plain; }

/* Where both do the same sums, or round their results to the same few digits, the ratio differs from 1 by chance only,
 * and by less than this with so many numbers. Few numbers decide the errors of large scores. */
static bool is_kept(const check_errors *e, bool is_large) {
    const double rms = is_large ? 1.1 : 1.02, max = is_large ? 2 : 1.5;
    return sqrt(e->squares) <= rms * sqrt(e->plain_squares) && e->max <= max * e->plain_max;
}

static void print_row(const char *name, const work *w, const check_errors *e, const check_errors *large) {
    const double count = (double)e->count, rms = sqrt(e->squares / count), plain = sqrt(e->plain_squares / count);
    printf("| %s | %s | %.2e | %.2e | %.2f | %.2e | %.2e | %.2f | %.2f | %.2f |\n", name, w->name, rms, plain,
           ratio_of(rms, plain), e->max, e->plain_max, ratio_of(e->max, e->plain_max),
           ratio_of(sqrt(large->squares), sqrt(large->plain_squares)), ratio_of(large->max, large->plain_max));
    fflush(stdout);
}

static json_t *row_json(const char *isa, const char *name, const work *w, const check_errors *e,
                        const check_errors *large) {
    const double count = (double)e->count;
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "isa", isa, "types", name, "problem", w->name,
                     "rms", json_number(sqrt(e->squares / count)), "plain_rms",
                     json_number(sqrt(e->plain_squares / count)), "max", json_number(e->max), "plain_max",
                     json_number(e->plain_max), "large_rms_ratio",
                     json_number(ratio_of(sqrt(large->squares), sqrt(large->plain_squares))), "large_max_ratio",
                     json_number(ratio_of(large->max, large->plain_max)));
}

static void judge(measuring *m, const work *w, const types *t, const check_errors *e, bool is_large) {
    if (is_kept(e, is_large)) return;
    tool_error("%s, %s%s: %.3f times the RMS error of a plain implementation, %.3f times the largest", t->name, w->name,
               is_large ? ", large scores" : "", sqrt(e->squares / e->plain_squares), e->max / e->plain_max);
    m->missed++;
}

static bool add_row(measuring *m, const work *w, const types *t) {
    check_errors e = {0}, large = {0};
    if (!measure(m, w, t, INPUT_ORDINARY, &e) || !measure(m, w, t, INPUT_LARGE, &large)) return false;
    if (!e.count) return true;
    if (m->rows)
        json_array_append_new(m->rows, row_json(m->machine->isas[m->isa], t->name, w, &e, &large));
    else
        print_row(t->name, w, &e, &large);
    judge(m, w, t, &e, false);
    judge(m, w, t, &large, true);
    return true;
}

static bool add_isa(measuring *m) {
    bool good = true;
    if (!m->rows)
        printf("| types, %s | problem | RMS error | plain | ratio | largest | plain | ratio | RMS, large scores | "
               "largest |"
               "\n|---|---|---|---|---|---|---|---|---|---|\n",
               m->machine->isas[m->isa]);
    for (size_t i = 0; i < sizeof all_types / sizeof *all_types && good; i++) {
        const types *t = &all_types[i];
        good = add_row(m, &prefill, t) && add_row(m, &decode, t) && (t->has_cache || add_row(m, &block, t)) &&
               add_row(m, &cached, t);
    }
    for (size_t i = 0; i < sizeof block_types / sizeof *block_types && good; i++)
        good = add_row(m, &block, &block_types[i]);
    if (!m->rows) printf("\n");
    return good;
}

bool check_accuracy(check_machine *machine, uint64_t seed, double max_flops, json_t *rows) {
    measuring m = {machine, 0, seed, max_flops, 0, rows};
    for (; m.isa < machine->num_isas; m.isa++)
        if (!add_isa(&m)) return false;
    return !m.missed;
}
