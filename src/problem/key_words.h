/* The canonical key of a problem word by word, with names. mha_key serialises the words; `attune cache why` compares
 * them to say in which field two kernels differ. */
#ifndef ATTUNE_PROBLEM_KEY_WORDS_H
#define ATTUNE_PROBLEM_KEY_WORDS_H

#include "problem/mha.h"
#include "problem/fields_text.h"

typedef enum mha_key_word_kind {
    MHA_KEY_FIELD,     /* the value of a field */
    MHA_KEY_NUMBER,    /* the bits of a double */
    MHA_KEY_MASK,      /* which dims of a mask are 1 */
    MHA_KEY_MASK_KEYS, /* how many keys a mask has, if fewer than all */
    MHA_KEY_TEXT,      /* a hash of a function, or of the tensors of functions; 0: there is none */
    MHA_KEY_STRIDE     /* the inner stride of the tensor with this name */
} mha_key_word_kind;

typedef struct mha_key_word {
    mha_key_word_kind kind;
    const char *name; /* static storage; words of a kind have different names */
    int64_t value;
} mha_key_word;

/* Writes the words of a canonical problem; returns how many. */
enum { MHA_KEY_WORDS = 96 };
size_t mha_key_words(const attune_problem *canonical, mha_key_word words[MHA_KEY_WORDS]);

void mha_key_word_name(const mha_key_word *word, mha_writer *writer);
void mha_key_word_value(const mha_key_word *word, mha_writer *writer);

#endif
