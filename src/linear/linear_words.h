/* The words of rules and gates in text, by their values: of descriptions, and of `attune run op=linear`. */
#ifndef ATTUNE_LINEAR_LINEAR_WORDS_H
#define ATTUNE_LINEAR_LINEAR_WORDS_H

#include <stddef.h>

static const char *const lin_rules[] = {"linear", "gated", "delta", "gated_delta", NULL};
static const char *const lin_gates[] = {"none", "silu", "sigmoid", NULL};

#endif
