/* A problem is generalised step by step (what is an argument is opened, unused outputs are added), and each general
 * problem is looked up by its hash in the kernels of the file. */
#define XXH_INLINE_ALL
#include "engine/tier0.h"

#include "compiler/codegen_path.h"
#include "generator_id.h"
#include "host/foreign.h"
#include "problem/problem_fields.h"
#include "problem/problem_sight.h"
#include "problem/signature.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool at_tier0_is_on(void) {
    const char *wish = getenv("ATTUNE_TIER0");
    return !wish || strcmp(wish, "off") != 0;
}

/* ---- The kernels ---- */

enum { MOST_KERNELS = 512, NUM_BUNDLES = 3 };

/* Hashes in place of whole keys, which are long. A collision of 128 bits is expected among 2^64 problems. */
typedef struct listed {
    XXH128_hash_t key;
    const at_bundle_kernel *kernel;
} listed;

static struct {
    pthread_once_t once;
    uint32_t count;
    listed kernels[MOST_KERNELS];
    char why[512]; /* the file exists but cannot be used */
    atomic_bool was_told;
} tier0 = {.once = PTHREAD_ONCE_INIT};

static XXH128_hash_t hash_of(const attune_problem *canonical) {
    uint8_t key[MHA_KEY_BYTES];
    const size_t bytes = mha_key(canonical, key);
    return XXH3_128bits(key, bytes);
}

/* The text of a described kernel is its key. */
static XXH128_hash_t hash_of_text(const char *text) { return XXH3_128bits(text, strlen(text)); }

attune_status at_tier0_problem(const at_bundle_kernel *kernel, attune_problem *problem, at_error *err) {
    attune_problem given = ATTUNE_PROBLEM_INIT;
    const attune_status status = mha_problem_parse(at_bundle_problem(kernel), &given, err);
    return status ? status : mha_canonicalize(&given, problem, err);
}

static void list(const at_bundle *bundle) {
    for (uint32_t k = 0; k < bundle->num_kernels && tier0.count < MOST_KERNELS; k++) {
        const at_bundle_kernel *const kernel = &bundle->kernels[k];
        attune_problem problem;
        if (kernel->is_described)
            tier0.kernels[tier0.count++] = (listed){hash_of_text(at_bundle_problem(kernel)), kernel};
        else if (!at_tier0_problem(kernel, &problem, NULL))
            tier0.kernels[tier0.count++] = (listed){hash_of(&problem), kernel};
    }
}

static void list_file(void *handle, const char *path) {
    static const char *const names[NUM_BUNDLES] = {"attune_tier0_bundle", "attune_tier0_dots_bundle",
                                                   "attune_tier0_operators_bundle"};
    for (int i = 0; i < NUM_BUNDLES; i++) {
        const at_bundle *const bundle = dlsym(handle, names[i]);
        if (!bundle) continue;
        if (bundle->version == AT_BUNDLE_VERSION && !strcmp(bundle->generator_id, ATTUNE_GENERATOR_ID))
            list(bundle);
        else
            snprintf(tier0.why, sizeof tier0.why, "%.300s is not used: it is of another build of attune", path);
    }
}

static void load(void) {
    at_codegen_file file;
    at_codegen_find("ATTUNE_TIER0", "libattune-tier0.so", &file);
    if (!file.path[0]) {
        memcpy(tier0.why, file.refused, sizeof file.refused);
        return;
    }
    void *const handle = dlopen(file.path, RTLD_NOW | RTLD_LOCAL);
    const char *const why = handle ? NULL : dlerror();
    if (handle)
        list_file(handle, file.path);
    else
        snprintf(tier0.why, sizeof tier0.why, "%.200s is not used: %.250s", file.path, why ? why : "");
}

/* The dynamic linker has locks of its own, so fork() must wait. */
static bool need(const at_log *log) {
    if (at_foreign_enter(AT_FOREIGN_COMPILER, NULL)) return false;
    pthread_once(&tier0.once, load);
    at_foreign_leave(AT_FOREIGN_COMPILER);
    if (tier0.why[0] && !atomic_exchange(&tier0.was_told, true))
        at_log_printf(log, ATTUNE_LOG_WARNING, "%s", tier0.why);
    return tier0.count != 0;
}

/* ---- What kernels leave open ---- */

/* FEW_QUERIES: as in scripts/tier0_kernels.sh. */
enum { FEW_QUERIES = 12 };

/* Generalises the problem to one that tier 0 has: removes what its kernels take as arguments, and adds the outputs that
 * they always write. false: the innermost stride of some tensor is not 1. */
static bool open_up(const attune_problem *p, attune_problem *open) {
    mha_tensor tensors[MHA_NUM_TENSORS];
    const size_t count = mha_tensors(p, tensors);
    for (size_t i = 0; i < count; i++)
        if (tensors[i].inner_stride != 1) return false;
    *open = *p;
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *const field = &mha_fields[i];
        if (field->kind == MHA_FIELD_STRIDES) memset((char *)open + field->offset, 0, mha_field_bytes(field));
    }
    open->batch = open->num_heads = open->num_kv_heads = 1;
    open->seq_q = open->seq_kv = ATTUNE_DYNAMIC;
    open->max_seq_q = open->max_seq_kv = 0;
    open->has_lse = 1;
    open->has_softmax_scale = 1;
    open->softmax_scale = ATTUNE_DEFAULT_SCALE;
    return true;
}

/* ---- Looking for one ---- */

typedef struct search {
    const attune_problem *problem;
    const at_tier0_place *place;
    bool has_file;
    at_tier0_kernel *found;
} search;

static const at_bundle_code *code_for(const at_bundle_kernel *kernel, const char *target) {
    const at_bundle_code *const codes = at_bundle_codes(kernel);
    for (uint32_t i = 0; i < kernel->num_codes; i++)
        if (!strcmp(at_bundle_code_target(&codes[i]), target)) return &codes[i];
    return NULL;
}

static bool has_for_target(const search *s, at_operation operation, XXH128_hash_t key, const char *target) {
    const at_tier0_place *const place = s->place;
    for (uint32_t i = 0; s->has_file && i < tier0.count; i++) {
        if (!XXH128_isEqual(key, tier0.kernels[i].key)) continue;
        s->found->kernel = tier0.kernels[i].kernel;
        s->found->code = code_for(s->found->kernel, target);
        if (s->found->code) return true;
    }
    s->found->code = at_bundles_find(place->registered, operation, target, place->machine, NULL, &s->found->kernel);
    return s->found->code != NULL;
}

/* bf16 dot products change the code of few kernels. The file has all others only for the class without them. */
static bool has_operation(const search *s, at_operation operation, XXH128_hash_t key) {
    const char *const target = s->place->target->name;
    if (has_for_target(s, operation, key, target)) return true;
    return !strcmp(target, "avx512_bf16") && has_for_target(s, operation, key, "avx512");
}

static bool has(const search *s, const attune_problem *open) {
    attune_problem canonical;
    if (mha_canonicalize(open, &canonical, NULL)) return false;
    return has_operation(s, at_attention_of(&canonical), hash_of(&canonical));
}

/* Kernels without `reproducible` are faster, so they come first if the problem allows them. */
static bool has_either(const search *s, attune_problem *open) {
    for (int reproducible = s->problem->reproducible; reproducible <= 1; reproducible++) {
        open->reproducible = reproducible;
        if (has(s, open)) return true;
    }
    return false;
}

/* Chooses by the number of queries: exactly one, a few, any. `most`: the call's number. */
static bool has_for(const search *s, attune_problem open, int64_t most, bool is_one) {
    const attune_problem any = open;
    if (is_one) {
        open.seq_q = 1;
        if (has_either(s, &open)) return true;
    }
    open = any;
    if (most <= FEW_QUERIES) {
        open.max_seq_q = FEW_QUERIES;
        if (has_either(s, &open)) return true;
    }
    open = any;
    return has_either(s, &open);
}

/* Where positions begin. */
typedef enum origin { ANY_ORIGIN, TOP_LEFT, BOTTOM_RIGHT, NO_ORIGIN } origin;

static origin origin_of(const attune_problem *p) {
    const bool is_right = mha_is_bottom_right(p) && !p->causal_offset;
    if (!p->is_causal) return ANY_ORIGIN;
    if (p->seq_q == 1 && is_right) return ANY_ORIGIN; /* one query at the last position sees all keys */
    if (mha_is_base_known(p) && !mha_first_position(p, p->seq_q, p->seq_kv)) return TOP_LEFT;
    return is_right ? BOTTOM_RIGHT : NO_ORIGIN;
}

static bool has_from(const search *s, attune_problem open, origin from, int64_t most, bool is_one) {
    open.is_causal = from != ANY_ORIGIN;
    open.causal_align = from == TOP_LEFT ? ATTUNE_TOP_LEFT : ATTUNE_BOTTOM_RIGHT;
    open.causal_offset = 0;
    return has_for(s, open, most, is_one);
}

/* ---- Steps of language models ---- */

/* The smallest page size, and the window and soft cap that mean any, as in scripts/tier0_kernels.sh, and the most rows
 * of a KV head that the kernel for a few queries computes. Smaller pages need kernels for pages of one key. */
enum { PART_OF_PAGE = 16, ANY_WINDOW = 1000000, FEW_ROWS = 31 };
static const double ANY_CAP = 1, LARGE_CAP = 1e37; /* caps below the second have an inverse in f32 */

/* Whether the last query is at the last key and attends to no key after it. A single query always is. */
static bool ends_at_last(const attune_problem *p) {
    if (p->window_right >= 0 || (!p->is_causal && mha_most_queries(p) != 1)) return false;
    return !mha_positions_matter(p) || (mha_is_bottom_right(p) && !p->causal_offset && !p->has_causal_offsets);
}

/* Group size, page size, window, soft cap, sinks and appending are arguments. A batch that is not ragged and keys
 * without pages get lists, made for the call, that say the same. */
static bool has_step(const search *s, attune_problem open) {
    const attune_problem *const p = s->problem;
    const int64_t group = p->num_heads / p->num_kv_heads, queries = mha_most_queries(p);
    if ((p->page_size & (p->page_size - 1)) || !ends_at_last(p) || p->logits_soft_cap >= LARGE_CAP) return false;
    s->found->folds_group = false;
    open.is_general = open.is_causal = open.is_ragged = open.has_kv_lens = open.has_sinks = 1;
    open.window_left = ANY_WINDOW;
    if (p->logits_soft_cap > 0) open.logits_soft_cap = ANY_CAP;
    open.causal_align = ATTUNE_BOTTOM_RIGHT;
    open.page_size = !p->page_size || p->page_size >= PART_OF_PAGE ? PART_OF_PAGE : 1;
    open.seq_new = ATTUNE_DYNAMIC;
    if (queries <= FEW_ROWS / group) {
        open.max_seq_q = FEW_QUERIES;
        if (has_either(s, &open)) return true;
        open.max_seq_q = 0;
    }
    return has_either(s, &open);
}

/* Attention to listed keys: group and page size are arguments here, too. */
static bool has_listed(const search *s, attune_problem open) {
    const attune_problem *const p = s->problem;
    const bool is_page = !p->page_size || (p->page_size >= PART_OF_PAGE && !(p->page_size & (p->page_size - 1)));
    if (p->kv_ids != ATTUNE_KV_IDS_QUERY || !p->has_kv_id_lens || !is_page) return false;
    s->found->folds_group = false;
    open.is_general = open.is_ragged = open.has_kv_lens = 1;
    open.num_ids = ATTUNE_DYNAMIC;
    open.page_size = PART_OF_PAGE;
    open.seq_new = ATTUNE_DYNAMIC;
    return has_either(s, &open);
}

/* Whole batches, of one query or without groups. */
static bool has_plain(const search *s, attune_problem open) {
    const attune_problem *const p = s->problem;
    const int64_t group = p->num_heads / p->num_kv_heads, queries = mha_most_queries(p);
    const origin from = origin_of(p);
    s->found->folds_group = group > 1;
    if (from == NO_ORIGIN) return false;
    /* The heads of a group become queries at one position, so each may have one query only. Not with lse: its queries
     * are contiguous in the kernel, while a call may give its heads any stride. */
    if (group > 1) return p->seq_q == 1 && !p->has_lse && from == ANY_ORIGIN && has_from(s, open, from, group, false);
    if (has_from(s, open, from, queries, p->seq_q == 1)) return true;
    /* With as many queries as keys, positions begin at 0 by either alignment. */
    return from == TOP_LEFT && p->seq_q >= 0 && p->seq_q == p->seq_kv &&
           has_from(s, open, BOTTOM_RIGHT, queries, false);
}

static bool has_any(const search *s, attune_problem open) {
    return s->problem->kv_ids ? has_listed(s, open) : has_plain(s, open) || has_step(s, open);
}

bool at_tier0_find(const attune_problem *p, const at_tier0_place *place, at_tier0_kernel *found) {
    const search s = {p, place, need(place->log), found};
    attune_problem open;
    if (p->op != ATTUNE_ATTENTION || !open_up(p, &open)) return false;
    if (!s.has_file && at_bundles_are_empty(place->registered)) return false;
    if (has_any(&s, open)) return true;
    if (open.matmul_precision != ATTUNE_BF16) return false;
    open.matmul_precision = ATTUNE_DTYPE_DEFAULT; /* no kernel needs to round */
    return has_any(&s, open);
}

bool at_tier0_find_described(at_operation operation, const at_tier0_place *place, at_tier0_kernel *found) {
    const search s = {.place = place, .has_file = need(place->log), .found = found};
    return has_operation(&s, operation, hash_of_text(operation.problem));
}
