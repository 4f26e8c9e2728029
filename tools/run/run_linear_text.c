/* What the text of `attune run op=linear` says. */
#include "run/run_linear.h"

#include "problem/fields_text.h"
#include "linear/linear_words.h"

#include <stdio.h>
#include <string.h>

static attune_status take_word(const mha_pair *pair, const char *const *words, int *number, at_error *err) {
    char all[64] = "";
    for (int i = 0; words[i]; i++) {
        const char *const before = !i ? "" : words[i + 1] ? ", " : " or ";
        if (mha_value_is(pair, words[i])) return *number = i, ATTUNE_OK;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", before, words[i]);
    }
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s is '%.*s'; it must be %s", pair->key_length, pair->key,
                   pair->value_length > 80 ? 80 : pair->value_length, pair->value, all);
}

static attune_status take_pair(void *user, const mha_pair *pair, at_error *err) {
    attune_linear_desc *const d = user;
    int word = 0;
    int64_t flag = 0;
    if (mha_key_is(pair, "op")) return ATTUNE_OK;
    if (mha_key_is(pair, "rule")) {
        if (!take_word(pair, lin_rules, &word, err)) d->rule = (attune_linear_rule)word;
        return err->status;
    }
    if (mha_key_is(pair, "gate")) {
        if (!take_word(pair, lin_gates, &word, err)) d->gate = (attune_linear_gate)word;
        return err->status;
    }
    if (mha_key_is(pair, "scale")) return mha_value_double(pair, ATTUNE_INVALID_PROBLEM, &d->scale, err);
    if (mha_key_is(pair, "qk_norm_eps")) return mha_value_double(pair, ATTUNE_INVALID_PROBLEM, &d->qk_norm_eps, err);
    if (mha_key_is(pair, "out_norm_eps")) return mha_value_double(pair, ATTUNE_INVALID_PROBLEM, &d->out_norm_eps, err);
    if (mha_key_is(pair, "reproducible")) {
        if (!mha_value_int(pair, ATTUNE_INVALID_PROBLEM, &flag, err) && !at_check_size("reproducible", flag, 0, 1, err))
            d->reproducible = (int)flag;
        return err->status;
    }
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "op=linear has no field %.*s here; it has rule, scale, qk_norm_eps, out_norm_eps, gate and "
                   "reproducible. Sizes come from the files",
                   pair->key_length > 80 ? 80 : pair->key_length, pair->key);
}

bool run_linear_text(const char *text, attune_linear_desc *desc) {
    at_error err = {0};
    if (!mha_for_each_pair(text, ATTUNE_INVALID_PROBLEM, take_pair, desc, &err)) return true;
    tool_error("%s", err.message);
    return false;
}
