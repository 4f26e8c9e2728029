/* A rule says whether there is a decay and a beta: inputs that are missing or too many are refused with a sentence. */
#include "linear.h"

#include <stdio.h>

const char *const linear_rules[] = {"linear", "gated", "delta", "gated_delta", NULL};

bool linear_has_decay(int64_t rule) { return rule == ATTUNE_GATED || rule == ATTUNE_GATED_DELTA; }

bool linear_check(const node_source *s, int64_t rule, char *message) {
    const bool wants_decay = linear_has_decay(rule), wants_beta = rule >= ATTUNE_DELTA;
    const bool fits = source_has_input(s, LINEAR_DECAY) == wants_decay;
    if (fits && source_has_input(s, LINEAR_BETA) == wants_beta) return true;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "update_rule is %s: the input %s must %sbe there", linear_rules[rule],
             fits ? "beta" : "decay", (fits ? wants_beta : wants_decay) ? "" : "not ");
    return false;
}
