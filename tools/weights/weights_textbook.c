/* Where no library's convention fits: words for query, key, value and output with the frames that people put around
 * them. */
#include "weights/weights_textbook.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Words for each part of the block. */
static const struct {
    attune_weight_id weight, bias;
    const char *words[10];
} parts[] = {
    {ATTUNE_Q_WEIGHT, ATTUNE_Q_BIAS, {"q", "query", "queries", "linears.0", "toqueries"}},
    {ATTUNE_K_WEIGHT, ATTUNE_K_BIAS, {"k", "key", "keys", "linears.1", "tokeys"}},
    {ATTUNE_V_WEIGHT, ATTUNE_V_BIAS, {"v", "value", "values", "linears.2", "tovalues"}},
    {ATTUNE_OUT_WEIGHT,
     ATTUNE_OUT_BIAS,
     {"o", "out", "output", "combine", "fc", "dense", "proj", "out.0", "linears.3", "unifyheads"}},
    {ATTUNE_QKV_WEIGHT, ATTUNE_QKV_BIAS, {"qkv", "in"}},
};
enum { NUM_PARTS = sizeof parts / sizeof *parts, NUM_WORDS = sizeof parts->words / sizeof *parts->words };

/* What may precede and follow the word in a layer's name. */
static const char *const frames[][2] = {{"", ""},        {"w_", ""},      {"w", ""},       {"w_", "s"},
                                        {"to_", ""},     {"fc_", ""},     {"linear_", ""}, {"proj_", ""},
                                        {"", "_proj"},   {"", "_linear"}, {"", "_layer"},  {"", "_projection"},
                                        {"", ".linear"}, {"", "_lin"},    {"", "_out"},    {"", "_dense"}};

/* Matrices and biases that are no layer's. */
static const char *const matrices[][2] = {{"w_", ""}, {"w", ""}, {"w^", ""}};
static const char *const biases[][2] = {{"b_", ""}, {"b", ""}, {"b^", ""}};

static bool is_framed(const char *name, const char *const frame[2], const char *word, const char *end) {
    char whole[64];
    snprintf(whole, sizeof whole, "%s%s%s%s", frame[0], word, frame[1], end);
    return strcasecmp(name, whole) == 0;
}

static bool is_any(const char *name, const char *const (*some)[2], size_t count, const char *word, const char *end) {
    for (size_t i = 0; i < count; i++)
        if (is_framed(name, some[i], word, end)) return true;
    return false;
}

#define IS_ANY(name, some, word, end) is_any(name, some, sizeof some / sizeof *some, word, end)

int textbook_id(const char *name, bool *is_bare) {
    enum { LONGEST = 48 }; /* of all names below */
    if (is_bare) *is_bare = false;
    if (strnlen(name, LONGEST + 1) > LONGEST) return ATTUNE_NUM_WEIGHTS;
    for (size_t p = 0; p < NUM_PARTS; p++)
        for (size_t w = 0; w < NUM_WORDS && parts[p].words[w]; w++) {
            const char *const word = parts[p].words[w];
            if (IS_ANY(name, frames, word, ".weight") || IS_ANY(name, frames, word, "_weight")) return parts[p].weight;
            if (IS_ANY(name, frames, word, ".bias") || IS_ANY(name, frames, word, "_bias") ||
                IS_ANY(name, biases, word, ""))
                return parts[p].bias;
            if (!IS_ANY(name, matrices, word, "")) continue;
            if (is_bare) *is_bare = true;
            return parts[p].weight;
        }
    return ATTUNE_NUM_WEIGHTS;
}

const char *textbook_names(void) {
    return "query, q_proj, w_q, to_q or q_linear with .weight and .bias, so for key and value, and combine, output, "
           "out_proj, o_proj, w_o or fc";
}
