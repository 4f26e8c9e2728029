#define XXH_INLINE_ALL
#include "support/problems.h"
#include "support/attend/integer_bits.h"

#include "common/tool.h"
#include "support/attend/integer_problems.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
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

/* ---- Digests ---- */

uint64_t integer_bits_join(uint64_t digest, uint64_t next) {
    unsigned char bytes[sizeof next];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(next >> 8 * i);
    return XXH3_64bits_withSeed(bytes, sizeof bytes, digest);
}

/* Version 1 was published when fields had other names in text: kv_lens=1, ragged=1, attn_mask=qk. A digest begins with
 * that text, so has_kv_lens=1, is_ragged=1 and attn_mask_dims=qk lose what is new. */
static uint64_t digest_of_text(const char *text) {
    static const struct {
        const char *today, *published;
    } parts[] = {{",has_", ","}, {",is_ragged", ",ragged"}, {"_dims=", "="}};
    char published[INTEGER_TEXT];
    size_t length = 0;
    while (*text) {
        size_t i = 0;
        while (i < 3 && strncmp(text, parts[i].today, strlen(parts[i].today)) != 0) i++;
        const char *const part = i < 3 ? parts[i].published : text;
        const size_t count = i < 3 ? strlen(part) : 1;
        memcpy(published + length, part, count);
        length += count, text += i < 3 ? strlen(parts[i].today) : 1;
    }
    return XXH3_64bits(published, length);
}

static uint64_t digest_of(const integer_problem *p, const tensors *t) {
    static const char *const outputs[] = {"out", "lse", "k", "v", "k_scale", "v_scale"};
    uint64_t digest = digest_of_text(p->text);
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const tensor *const one = tensors_find(t, outputs[i]);
        for (size_t at = 0; one && one->info.is_output && at < one->count; at++) {
            const long double x = ref_load(one->info.dtype, one->data, (int64_t)at);
            const double number = isnan(x) ? (double)NAN : (double)x;
            uint64_t bits;
            memcpy(&bits, &number, sizeof bits);
            digest = integer_bits_join(digest, bits);
        }
    }
    return digest;
}

/* ---- Runs ---- */

/* One run, compared with the first one. */
typedef struct run {
    const check_case *c;
    const integer_problem *frozen; /* NULL: the case was drawn */
    const tensors *first;          /* NULL: this one is */
    const char *isa, *engine;
    bool is_code; /* machine code, not what stands in for it */
} run;

static bool fail(const run *r, const char *why) {
    char *const problem = problem_text(&r->c->problem);
    tool_error("%s, %s: %s: %s", r->isa, r->engine, why, problem ? problem : "");
    free(problem);
    return false;
}

static bool compute(const run *r, attune_context *context, const mha_schedule *schedule, attune_engine engine,
                    const tensors *t) {
    char difference[DIFFERENCE_TEXT];
    attune_kernel *kernel = NULL;
    const bool interprets = engine == ATTUNE_ENGINE_INTERPRETER;
    if (!interprets && attune_compile(context, &t->problem, TEXT_OF(schedule), &kernel))
        return fail(r, attune_last_message());
    attune_kernel_info info = {.struct_size = sizeof info};
    if (r->is_code && (attune_kernel_get_info(kernel, &info) || info.engine != ATTUNE_ENGINE_JIT)) {
        attune_kernel_release(kernel);
        return fail(r, "nothing was compiled");
    }
    const attune_status status = tensors_run(t, context, kernel, TEXT_OF(schedule), engine);
    attune_kernel_release(kernel);
    if (status) return fail(r, attune_last_message());
    return !r->first || tensors_same_outputs(r->first, t, difference) || fail(r, difference);
}

static bool make_tensors(const run *r, tensors *t) {
    if (r->frozen) return integer_problem_tensors(r->frozen, t);
    if (!tensors_create_sized(t, &r->c->problem, &r->c->sizes)) return false;
    if (!tensors_fill(t, r->c->inputs, r->c->seed)) {
        tensors_free(t);
        return false;
    }
    tensors_clear_outputs(t);
    return true;
}

static bool again(const run *r, attune_context *context, const mha_schedule *schedule, attune_engine engine) {
    tensors t;
    if (!make_tensors(r, &t)) return false;
    const bool same = compute(r, context, schedule, engine, &t);
    tensors_free(&t);
    return same;
}

/* The virtual machine, and machine code if the problem is compiled. A schedule is drawn for each of those, and
 * otherwise for one instruction set, by numbers of its own: how many it takes depends on the machine. */
static bool on_isa(integer_bits *bits, const run *first, check_case *c, bool compiles) {
    tool_random own = {c->seed + c->isa}, *const random = &own;
    attune_context *const virtual = bits->virtual[c->isa];
    run r = *first;
    r.isa = bits->machine.isas[c->isa];
    r.engine = "virtual machine";
    if (!again(&r, virtual, NULL, ATTUNE_ENGINE_JIT)) return false;
    if (!compiles && c->seed % bits->machine.num_isas != c->isa) return true;
    c->threads = (uint32_t)tool_random_range(random, 1, CHECK_MAX_THREADS);
    if (!check_draw_schedule(&bits->machine, random, c) || !again(&r, virtual, &c->schedule, ATTUNE_ENGINE_JIT))
        return false;
    if (!compiles) return true;
    r.engine = "machine code";
    r.is_code = true;
    attune_context *const context = check_context(&bits->machine, c->isa, c->threads);
    return context && again(&r, context, &c->schedule, ATTUNE_ENGINE_JIT);
}

/* Runs the case everywhere; *digest, if it is wanted, is that of a frozen problem. */
static bool check(integer_bits *bits, check_case *c, const integer_problem *frozen, bool compiles, uint64_t *digest) {
    run r = {.c = c, .frozen = frozen, .isa = bits->machine.isas[0], .engine = "interpreter"};
    tensors first;
    if (!make_tensors(&r, &first)) return false;
    bool good = compute(&r, bits->virtual[0], NULL, ATTUNE_ENGINE_INTERPRETER, &first);
    r.first = &first;
    for (c->isa = 0; good && c->isa < bits->machine.num_isas; c->isa++) good = on_isa(bits, &r, c, compiles);
    if (good && frozen) *digest = digest_of(frozen, &first);
    tensors_free(&first);
    return good;
}

bool integer_bits_check(integer_bits *bits, tool_random *random, bool compiles) {
    check_case c;
    return draw(random, &c) && check(bits, &c, NULL, compiles, NULL);
}

bool integer_bits_digest(integer_bits *bits, uint64_t number, bool compiles, uint64_t *digest) {
    integer_problem p;
    if (!integer_problem_make(number, &p)) return false;
    check_case c = {.problem = p.problem, .sizes = p.sizes, .seed = number};
    return check(bits, &c, &p, compiles, digest);
}
