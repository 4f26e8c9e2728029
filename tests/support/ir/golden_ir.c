#define _GNU_SOURCE
#define XXH_INLINE_ALL
#include "support/ir/golden_ir.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* Those of src/target/target.c. The names are repeated here so that a new target changes no other target's cases. */
static const struct {
    const char *name;
    bool has_pairs; /* products of bf16 */
} targets[] = {{"avx512_bf16", true}, {"amx", true},     {"avx512", false},
               {"avx2", false},       {"x86-64", false}, {"aarch64", false}};
enum { TARGETS = sizeof targets / sizeof *targets };

/* With the schedule that attune chooses. Each is known by its number, so new ones come last in `later`, whose numbers
 * follow those of the drawn cases. */
static const char *const usual[] = {
    "num_heads=12,seq_q=128,head_dim=64",
    "num_heads=12,seq_q=512,head_dim=64,has_lse=1",
    "num_heads=12,seq_q=197,head_dim=64",
    "num_heads=12,batch=8,seq_q=128,head_dim=64,attn_mask_dims=bk",
    "num_heads=32,seq_q=2048,head_dim=128",
    "num_heads=16,seq_q=4096,head_dim=64",
    "num_heads=16,seq_q=4096,head_dim=64,is_causal=1",
    "num_heads=32,num_kv_heads=8,seq_q=2048,head_dim=128,is_causal=1",
    "num_heads=12,seq_q=128,head_dim=64,dtype=bf16",
    "num_heads=12,seq_q=197,head_dim=64,dtype=bf16",
    "num_heads=32,seq_q=512,head_dim=128,dtype=bf16",
    "num_heads=16,seq_q=4096,head_dim=64,dtype=bf16",
    "num_heads=32,num_kv_heads=8,seq_q=2048,head_dim=128,is_causal=1,dtype=bf16",
    "num_heads=12,seq_q=512,head_dim=64,dtype=f16",
    "num_heads=12,seq_q=512,head_dim=64,dtype=f64",
    "num_heads=12,seq_q=512,head_dim=64,reproducible=1",
    "num_heads=8,seq_q=16,head_dim=32",
    "num_heads=8,seq_q=64,head_dim=32",
    "num_heads=8,seq_q=64,head_dim=32,is_causal=1,dtype=bf16",
    "num_heads=16,seq_q=1024,head_dim=80,window_left=256,window_right=0,has_sinks=1,logits_soft_cap=30",
    "num_heads=16,seq_q=512,head_dim=64,has_alibi_slopes=1,attn_bias_dims=hqk",
    "num_heads=32,seq_q=1,seq_kv=512,head_dim=128",
    "num_heads=32,seq_q=1,seq_kv=4096,head_dim=128",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,dtype=bf16",
    "num_heads=32,num_kv_heads=8,seq_q=4,seq_kv=4096,head_dim=128,is_causal=1,causal_align=bottom_right",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,k_dtype=f16,v_dtype=f16",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,k_dtype=i8,v_dtype=i8,k_scales=head,v_scales=head",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,k_dtype=i8,v_dtype=i8,k_scales=token,v_scales=token",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,k_dtype=f8,v_dtype=f8,k_scales=head,v_scales=head",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,reproducible=1",
    "num_heads=16,num_kv_heads=1,seq_q=1,seq_kv=4096,head_dim=576,head_dim_v=512,v_in_k=1,dtype=bf16",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=dynamic,head_dim=128,dtype=bf16,has_kv_lens=1,page_size=16",
    "num_heads=32,num_kv_heads=8,seq_q=dynamic,seq_kv=dynamic,head_dim=128,is_causal=1",
    "num_heads=32,num_kv_heads=8,seq_q=dynamic,seq_kv=dynamic,head_dim=128,is_causal=1,is_ragged=1",
    "op=weights,num_heads=12,seq_q=512,head_dim=64,weights_mode=softmax",
    "op=rotary,num_heads=32,seq_q=512,head_dim=128,rotary_dim=128",
    "op=merge,num_heads=32,seq_q=64,head_dim=128,num_parts=8",
    "embed_dim=768,num_heads=12,seq_q=128",
    "embed_dim=768,num_heads=12,seq_q=512",
    "embed_dim=768,num_heads=12,seq_q=512,dtype=bf16",
    "embed_dim=1024,num_heads=16,seq_q=512,w_dtype=bf16",
    "embed_dim=768,num_heads=12,is_cross=1,seq_q=77,seq_kv=512,dtype=bf16",
    "embed_dim=768,num_heads=12,seq_q=1024,low_rank=256",
    "embed_dim=2048,num_heads=16,num_kv_heads=4,seq_q=1,seq_kv=1024,seq_new=1,is_causal=1,causal_align=bottom_right,"
    "rotary_dim=128",
    "embed_dim=4096,num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=dynamic,seq_new=1,is_causal=1,causal_align=bottom_right,"
    "rotary_dim=128,dtype=bf16,has_kv_lens=1,page_size=16",
    "embed_dim=1024,num_heads=16,num_kv_heads=8,head_dim=128,seq_q=1,seq_kv=dynamic,seq_new=1,is_causal=1,"
    "causal_align=bottom_right,rotary_dim=128,qk_norm_eps=1e-6,has_kv_lens=1",
    "embed_dim=256,num_heads=4,seq_q=100,dtype=bf16,attn_mask_dims=k",
    "embed_dim=512,num_heads=8,num_kv_heads=2,seq_q=333,dtype=bf16,is_causal=1,rotary_dim=64",
    "embed_dim=256,num_heads=4,seq_q=dynamic,dtype=bf16,is_ragged=1",
    "batch=3,embed_dim=512,num_heads=8,head_dim=32,seq_q=50,out_dim=256,dtype=bf16,has_lse=1",
    "embed_dim=512,num_heads=8,is_cross=1,kv_embed_dim=768,seq_q=77,seq_kv=300,dtype=bf16,has_sinks=1",
    "embed_dim=512,num_heads=8,seq_q=64,seq_kv=dynamic,seq_new=64,dtype=bf16,is_causal=1,has_kv_lens=1,page_size=16",
    "embed_dim=1024,num_heads=16,seq_q=512,dtype=bf16,reproducible=1",
};
static const char *const later[] = {
    "num_heads=32,num_kv_heads=8,seq_q=4,seq_kv=4096,head_dim=128,kv_ids=query,num_ids=512,has_kv_id_lens=1",
    "num_heads=128,num_kv_heads=1,seq_q=1,seq_kv=dynamic,head_dim=576,head_dim_v=512,v_in_k=1,dtype=bf16,kv_ids=query,"
    "num_ids=2048,has_kv_id_lens=1,has_kv_lens=1,page_size=64",
};
enum { USUAL = sizeof usual / sizeof *usual, RANDOM = 334, LATER = sizeof later / sizeof *later };
enum { CASES = USUAL + RANDOM + LATER }; /* of each target */

/* ---- Contexts ---- */

extern char **environ;

static void forget_variables(void) {
    for (char **at = environ; *at;) {
        char name[64];
        const size_t length = strcspn(*at, "=");
        if (strncmp(*at, "ATTUNE_", 7) != 0 || length >= sizeof name) {
            at++;
            continue;
        }
        memcpy(name, *at, length);
        name[length] = 0;
        unsetenv(name); /* the next one moves up */
    }
}

bool golden_open(check_machine *machine) {
    _Static_assert((int)TARGETS <= (int)CHECK_MAX_ISAS, "a context for each target");
    forget_variables();
    setenv("ATTUNE_MACHINE", "generic", 1);
    *machine = (check_machine){.num_isas = TARGETS};
    for (int i = 0; i < TARGETS; i++) {
        const tool_common common = {.target = targets[i].name};
        machine->isas[i] = targets[i].name;
        machine->contexts[i][0] = tool_open_context(&common, 1, "");
        if (!machine->contexts[i][0]) return false;
    }
    return true;
}

/* ---- Cases ---- */

size_t golden_count(void) { return (size_t)TARGETS * CASES; }

static void name_case(size_t number, char name[GOLDEN_NAME]) {
    snprintf(name, GOLDEN_NAME, "%s:%zu", targets[number / CASES].name, number % CASES);
}

size_t golden_find(const char *name) {
    size_t number = 0;
    char own[GOLDEN_NAME];
    for (; number < golden_count(); number++) {
        name_case(number, own);
        if (strcmp(own, name) == 0) break;
    }
    return number;
}

static tool_random stream(const char *name, const char *purpose) {
    char text[2 * GOLDEN_NAME];
    const int length = snprintf(text, sizeof text, "%s %s", name, purpose);
    return (tool_random){XXH3_64bits(text, (size_t)length)};
}

/* `attune-lab check` draws f32 mostly, and small problems only, since it runs them. */
static bool draw_problem(const char *name, bool has_pairs, attune_problem *p) {
    static const double limits[] = {4e6, 4e6, 1e8, 1e12};
    static const attune_dtype others[] = {ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    call_sizes sizes;
    tool_random random = stream(name, "problem");
    if (!check_draw_problem(&random, limits[tool_random_range(&random, 0, 3)], p, &sizes)) return false;
    const attune_dtype before = p->dtype;
    const attune_dtype other = has_pairs ? ATTUNE_BF16 : others[tool_random_range(&random, 0, 2)];
    if (before != ATTUNE_DTYPE_DEFAULT || !tool_random_chance(&random, has_pairs ? 60 : 25)) return true;
    p->dtype = other;
    if (attune_problem_check(p) != ATTUNE_OK) p->dtype = before;
    return true;
}

/* The streams are apart, so that a change of how schedules are drawn leaves the problems as they are. */
static bool draw_case(check_machine *machine, size_t number, const char *name, check_case *c) {
    const size_t own = number % CASES;
    const char *const text = own < USUAL ? usual[own] : own >= USUAL + RANDOM ? later[own - USUAL - RANDOM] : NULL;
    *c = (check_case){.isa = (uint32_t)(number / CASES), .threads = 1, .schedule = {0}};
    if (text) {
        if (!problem_from_text(text, &c->problem)) return false;
        if (check_take_schedule(machine->contexts[c->isa][0], c, NULL)) return true;
        tool_library_error(text);
        return false;
    }
    tool_random random = stream(name, "schedule");
    return draw_problem(name, targets[c->isa].has_pairs, &c->problem) && check_draw_schedule(machine, &random, c);
}

bool golden_make(check_machine *machine, size_t number, golden_case *c) {
    check_case drawn;
    size_t bytes = 0;
    *c = (golden_case){.target = targets[number / CASES].name, .context = machine->contexts[number / CASES][0]};
    name_case(number, c->line.name);
    if (!draw_case(machine, number, c->line.name, &drawn)) return false;
    c->problem = problem_text(&drawn.problem);
    c->schedule = strdup(mha_schedule_text(&drawn.schedule).text);
    if (!c->problem || !c->schedule) {
        tool_error("out of memory");
        return false;
    }
    if (attune_emit(c->context, &drawn.problem, c->schedule, ATTUNE_STAGE_LOWERED, &c->ir, &bytes) != ATTUNE_OK) {
        tool_library_error(c->problem);
        return false;
    }
    c->line.problem = (uint32_t)XXH3_64bits(c->problem, strlen(c->problem));
    c->line.schedule = (uint32_t)XXH3_64bits(c->schedule, strlen(c->schedule));
    c->line.ir = golden_hash(c->ir);
    return true;
}

void golden_free(golden_case *c) {
    free(c->problem);
    free(c->schedule);
    if (c->ir) attune_free(c->context, c->ir);
}

/* ---- The file ---- */

static const char header[] =
    "# Hashes of lowered IR, written by `make golden-update` (docs/testing.md, \"Golden IR\"): case, problem's text, "
    "schedule's\n# text, IR.\n";

bool golden_write(const char *path, const golden_line *lines, size_t count) {
    FILE *const f = fopen(path, "w");
    if (f) fputs(header, f);
    for (size_t i = 0; f && i < count; i++)
        fprintf(f, "%s %08" PRIx32 " %08" PRIx32 " %016" PRIx64 "\n", lines[i].name, lines[i].problem,
                lines[i].schedule, lines[i].ir);
    const bool failed = !f || ferror(f);
    if (!f || fclose(f) || failed) {
        tool_error("cannot write %s", path);
        return false;
    }
    return true;
}

static bool read_lines(FILE *f, const char *path, golden_file *file) {
    char text[256];
    for (size_t number = 1; fgets(text, sizeof text, f); number++) {
        golden_line line;
        if (text[0] == '#') continue;
        if (sscanf(text, "%31s %8" SCNx32 " %8" SCNx32 " %16" SCNx64, line.name, &line.problem, &line.schedule,
                   &line.ir) != 4) {
            tool_error("%s:%zu: not a case with three hashes", path, number);
            return false;
        }
        golden_line *const lines = realloc(file->lines, (file->count + 1) * sizeof *lines);
        if (!lines) {
            tool_error("out of memory");
            return false;
        }
        file->lines = lines;
        file->lines[file->count++] = line;
    }
    return true;
}

bool golden_read(const char *path, golden_file *file) {
    *file = (golden_file){0};
    FILE *const f = fopen(path, "r");
    if (!f) {
        tool_error("cannot read %s", path);
        return false;
    }
    const bool good = read_lines(f, path, file);
    fclose(f);
    return good;
}

void golden_close(golden_file *file) { free(file->lines); }

golden_verdict golden_compare(const golden_file *file, const golden_line *line) {
    const golden_line *was = NULL;
    for (size_t i = 0; i < file->count && !was; i++)
        if (strcmp(file->lines[i].name, line->name) == 0) was = &file->lines[i];
    if (!was) return GOLDEN_MISSING;
    const bool same_text = was->problem == line->problem && was->schedule == line->schedule;
    if (was->ir == line->ir) return same_text ? GOLDEN_SAME : GOLDEN_OTHER_TEXT;
    return same_text ? GOLDEN_OTHER_IR : GOLDEN_OTHER_DRAWN;
}
