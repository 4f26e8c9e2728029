#define XXH_INLINE_ALL
#include "support/integer_bits.h"

#include "common/tool.h"

#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

static const char *const isas[] = {"avx512_bf16", "avx512", "avx2", "x86-64", "aarch64"};

bool integer_bits_open(integer_bits *bits) {
    *bits = (integer_bits){.machine = {.num_isas = 0}};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        options.isa = isas[i];
        options.cache_dir = "";
        options.compile_mode = ATTUNE_COMPILE_NEVER;
        attune_context **const slot = &bits->virtual[bits->machine.num_isas];
        if (attune_context_create(&options, slot) == ATTUNE_OK) bits->machine.isas[bits->machine.num_isas++] = isas[i];
    }
    if (!bits->machine.num_isas) tool_error("this CPU runs no instruction set");
    return bits->machine.num_isas > 0;
}

void integer_bits_close(integer_bits *bits) {
    for (uint32_t i = 0; i < bits->machine.num_isas; i++) attune_context_destroy(bits->virtual[i]);
    check_close(&bits->machine);
}

/* Sums of floats, which have another order on each instruction set, are those of projections and of norms. */
static bool is_promised(const attune_problem *p) {
    return p->integer == ATTUNE_INTEGER_ALL && !p->embed_dim && !(p->qk_norm_eps > 0);
}

static bool draw(tool_random *random, check_case *c) {
    const double max_flops = 30000;
    *c = (check_case){.sizes = CALL_SIZES_NONE};
    do {
        if (!check_draw_problem(random, max_flops, &c->problem, &c->sizes)) return false;
    } while (!is_promised(&c->problem));
    c->inputs = tool_random_chance(random, 50) ? INPUT_ORDINARY
                                               : (input_kind)tool_random_range(random, 0, INPUT_KIND_COUNT - 1);
    c->seed = tool_random_next(random) >> 32;
    return true;
}

/* All NaN are alike. */
static uint64_t hash_of(const tensors *t, uint64_t digest) {
    for (size_t i = 0; i < t->count; i++) {
        const tensor *const one = &t->list[i];
        for (size_t at = 0; one->info.is_output && at < one->count; at++) {
            const long double x = ref_load(one->info.dtype, one->data, (int64_t)at);
            const double number = isnan(x) ? (double)NAN : (double)x;
            digest = XXH3_64bits_withSeed(&number, sizeof number, digest);
        }
    }
    return digest;
}

/* One run, compared with the first one. */
typedef struct run {
    const check_case *c;
    const tensors *first; /* NULL: this one is */
    const char *isa, *engine;
} run;

static bool fail(const run *r, const char *why) {
    char *const problem = problem_text(&r->c->problem);
    tool_error("%s, %s: %s: %s", r->isa, r->engine, why, problem ? problem : "");
    free(problem);
    return false;
}

static bool compute(const run *r, attune_context *context, const attune_schedule *schedule, attune_engine engine,
                    const tensors *t) {
    char difference[DIFFERENCE_TEXT];
    attune_kernel *kernel = NULL;
    const bool interprets = engine == ATTUNE_ENGINE_INTERPRETER;
    if (!interprets && attune_compile(context, &t->problem, schedule, &kernel)) return fail(r, attune_last_message());
    const attune_status status = tensors_run(t, context, kernel, schedule, engine);
    attune_kernel_release(kernel);
    if (status) return fail(r, attune_last_message());
    return !r->first || tensors_same_outputs(r->first, t, difference) || fail(r, difference);
}

static bool again(const run *r, attune_context *context, const attune_schedule *schedule, attune_engine engine) {
    tensors t;
    if (!tensors_create_sized(&t, &r->c->problem, &r->c->sizes)) return false;
    const bool good = tensors_fill(&t, r->c->inputs, r->c->seed);
    tensors_clear_outputs(&t);
    const bool same = good && compute(r, context, schedule, engine, &t);
    tensors_free(&t);
    return same;
}

/* Schedules are drawn by numbers of their own: how many it takes depends on the machine. */
static bool on_isa(integer_bits *bits, check_case *c, const tensors *first, bool compiles) {
    tool_random own = {c->seed + c->isa}, *const random = &own;
    run r = {.c = c, .first = first, .isa = bits->machine.isas[c->isa], .engine = "virtual machine"};
    attune_context *const virtual = bits->virtual[c->isa];
    c->threads = (uint32_t)tool_random_range(random, 1, CHECK_MAX_THREADS);
    if (!check_draw_schedule(&bits->machine, random, c)) return false;
    if (!again(&r, virtual, NULL, ATTUNE_ENGINE_JIT) || !again(&r, virtual, &c->schedule, ATTUNE_ENGINE_JIT))
        return false;
    if (!compiles) return true;
    r.engine = "machine code";
    attune_context *const context = check_context(&bits->machine, c->isa, c->threads);
    return context && again(&r, context, &c->schedule, ATTUNE_ENGINE_JIT);
}

bool integer_bits_check(integer_bits *bits, tool_random *random, bool compiles, uint64_t *digest) {
    check_case c;
    tensors first;
    if (!draw(random, &c) || !tensors_create_sized(&first, &c.problem, &c.sizes)) return false;
    const run r = {.c = &c, .isa = bits->machine.isas[0], .engine = "interpreter"};
    bool good = tensors_fill(&first, c.inputs, c.seed);
    tensors_clear_outputs(&first);
    good = good && compute(&r, bits->virtual[0], NULL, ATTUNE_ENGINE_INTERPRETER, &first);
    for (c.isa = 0; good && c.isa < bits->machine.num_isas; c.isa++) good = on_isa(bits, &c, &first, compiles);
    if (good) *digest = hash_of(&first, *digest);
    tensors_free(&first);
    return good;
}
