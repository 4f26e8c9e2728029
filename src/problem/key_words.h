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
    MHA_KEY_MASK_KEYS, /* how many keys it has, if fewer than there are */
    MHA_KEY_TEXT,      /* a hash of a function, or of the tensors of functions; 0: there is none */
    MHA_KEY_STRIDE     /* the inner stride of a tensor, by whose name it goes */
} mha_key_word_kind;

typedef struct mha_key_word {
    mha_key_word_kind kind;
    const char *name; /* static storage; no two words of a kind have one name */
    int64_t value;
} mha_key_word;

/* The words of a canonical problem; returns how many. */
enum { MHA_KEY_WORDS = 96 };
size_t mha_key_words(const attune_problem *canonical, mha_key_word words[MHA_KEY_WORDS]);

void mha_key_word_name(const mha_key_word *word, mha_writer *writer);
void mha_key_word_value(const mha_key_word *word, mha_writer *writer);

#endif
