/* The functions on scores, masks and probabilities: checked, and their text made canonical. */
#include "problem/problem_functions.h"
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "problem/signature.h"

#include <string.h>

/* The number of sequences, and in attention alone that of heads, are known only when a kernel runs. */
static void find_sizes(const attune_problem *p, ex_scope *scope) {
    const bool is_block = mha_is_block(p);
    const int64_t queries = mha_most_queries(p), keys = mha_most_keys(p), group = p->num_heads / p->num_kv_heads;
    const int64_t sizes[EX_NUM_VARS][2] = {
        [EX_V_B] = {1, MHA_MAX_SIZE},
        [EX_V_H] = {is_block ? p->num_heads : group, is_block ? p->num_heads : MHA_MAX_SIZE},
        [EX_V_KV_H] = {is_block ? p->num_kv_heads : 1, is_block ? p->num_kv_heads : MHA_MAX_SIZE},
        [EX_V_Q] = {p->seq_q >= 0 ? p->seq_q : 0, queries},
        [EX_V_KV] = {p->seq_kv >= 0 ? p->seq_kv : 0, keys},
        [EX_V_SEQ_Q] = {1, queries},
        [EX_V_SEQ_KV] = {1, keys},
    };
    for (int i = 0; i < EX_NUM_VARS; i++) {
        scope->size[i].least = sizes[i][0];
        scope->size[i].most = sizes[i][1];
    }
}

attune_status mha_read_functions(const attune_problem *p, ex_program *program, at_error *err) {
    ex_scope scope = {.tensors = p->tensors};
    find_sizes(p, &scope);
    ex_program_init(program, &scope);
    attune_status status = ex_parse_score(program, p->score_mod, err);
    if (!status) status = ex_parse_mask(program, p->mask_mod, err);
    return status ? status : ex_parse_prob(program, p->prob_mod, err);
}

static bool has_gaps(const attune_problem *p) {
    ex_program program;
    return mha_read_functions(p, &program, &(at_error){0}) != ATTUNE_OK || !ex_shows_intervals(&program);
}

mha_problem mha_read(const attune_problem *p) { return (mha_problem){p, p->mask_mod[0] && has_gaps(p)}; }

/* ---- Canonical text ---- */

static attune_status check_text(const char *name, const char *text, at_error *err) {
    if (memchr(text, '\0', ATTUNE_FUNCTION_BYTES)) {
        if (!strchr(text, '"')) return ATTUNE_OK;
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s, column %d: a quotation mark has no meaning here", name,
                       (int)(strchr(text, '"') - text) + 1);
    }
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s has no NUL within its %d bytes", name, ATTUNE_FUNCTION_BYTES);
}

static attune_status rewrite(const ex_program *program, const char *name, int root, char *text, at_error *err) {
    const bool is_needed = !ex_is_identity(program, root);
    char canonical[ATTUNE_FUNCTION_BYTES];
    const size_t length = is_needed ? ex_print(program, root, canonical, sizeof canonical) : 0;
    if (length >= sizeof canonical)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "%s is too long: its canonical text must have at most %d characters", name,
                       ATTUNE_FUNCTION_BYTES - 1);
    memset(text, 0, ATTUNE_FUNCTION_BYTES);
    memcpy(text, canonical, length);
    return ATTUNE_OK;
}

static attune_status check_names(const attune_problem *p, at_error *err) {
    const int count = ex_count_tensors(p->tensors);
    for (int i = 0; i < count; i++)
        if (mha_is_tensor_name(p->tensors[i].name))
            return at_fail(err, ATTUNE_INVALID_PROBLEM,
                           "a tensor cannot be named '%s': attention has a tensor of that name", p->tensors[i].name);
    return ATTUNE_OK;
}

static attune_status check_used(const ex_program *program, const attune_problem *p, at_error *err) {
    const int unused = ex_unused_tensor(program);
    if (unused < 0) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "tensor '%s' is declared, but no function uses it",
                   p->tensors[unused].name);
}

attune_status mha_settle_functions(attune_problem *p, at_error *err) {
    ex_program program;
    if (!mha_has_functions(p) && !p->tensors[0].name[0]) {
        memset(p->score_mod, 0, sizeof p->score_mod);
        memset(p->mask_mod, 0, sizeof p->mask_mod);
        memset(p->prob_mod, 0, sizeof p->prob_mod);
        return ex_check_tensors(p->tensors, err);
    }
    attune_status status = check_text("score_mod", p->score_mod, err);
    if (!status) status = check_text("mask_mod", p->mask_mod, err);
    if (!status) status = check_text("prob_mod", p->prob_mod, err);
    if (!status) status = ex_check_tensors(p->tensors, err);
    if (!status) status = check_names(p, err);
    if (!status) status = mha_read_functions(p, &program, err);
    if (!status) status = check_used(&program, p, err);
    if (!status) status = rewrite(&program, "score_mod", program.score, p->score_mod, err);
    if (!status) status = rewrite(&program, "mask_mod", program.mask, p->mask_mod, err);
    if (!status) status = rewrite(&program, "prob_mod", program.prob, p->prob_mod, err);
    return status;
}

/* ---- Masks that fields say as well ---- */

/* Where no position matters yet, they may begin anywhere. */
static bool set_free_band(attune_problem *p, const ex_band *band) {
    const bool has_least = band->least != INT64_MIN, has_most = band->most != INT64_MAX;
    const int64_t base = has_most ? band->most : max_of(band->least, 0);
    if (base < -MHA_MAX_SIZE || base > MHA_MAX_SIZE) return false;
    if (has_least && (base < band->least || base - band->least > MHA_MAX_SIZE)) return false;
    p->causal_align = ATTUNE_TOP_LEFT;
    p->causal_offset = base;
    p->has_causal_offsets = 0;
    p->global_tokens = 0;
    p->is_causal = has_most;
    p->window_left = has_least ? base - band->least : -1;
    return true;
}

/* Both limits hold. */
static int64_t narrower(int64_t window, int64_t other) { return window < 0 ? other : min_of(window, other); }

/* Where positions begin is said already. */
static bool set_bound_band(attune_problem *p, const ex_band *band) {
    const int64_t base = mha_first_position(p, p->seq_q, p->seq_kv);
    const bool is_known = mha_is_base_known(p) && !p->global_tokens;
    const int64_t left = band->least == INT64_MIN ? -1 : base - band->least;
    const int64_t right = band->most == INT64_MAX ? -1 : band->most - base;
    if (!is_known || (band->least != INT64_MIN && left < 0) || (band->most != INT64_MAX && right < 0)) return false;
    if (left > MHA_MAX_SIZE || right > MHA_MAX_SIZE) return false;
    if (left >= 0) p->window_left = narrower(p->window_left, left);
    if (right == 0) p->is_causal = 1;
    if (right > 0 && !p->is_causal) p->window_right = narrower(p->window_right, right);
    return true;
}

attune_status mha_settle_band(attune_problem *p, at_error *err) {
    ex_program program;
    ex_band band;
    int rest;
    if (!p->mask_mod[0]) return ATTUNE_OK;
    attune_status status = mha_read_functions(p, &program, err);
    if (status || !ex_take_band(&program, &band, &rest)) return status;
    if (!(mha_positions_matter(p) ? set_bound_band(p, &band) : set_free_band(p, &band))) return ATTUNE_OK;
    status = rewrite(&program, "mask_mod", rest, p->mask_mod, err);
    return status ? status : mha_settle_positions(p, err);
}
