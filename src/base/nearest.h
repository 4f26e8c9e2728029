/* The known word that is nearest to an unknown one, for "did you mean". It depends on nothing else of attune, so that
 * the command links it, too. */
#ifndef ATTUNE_BASE_NEAREST_H
#define ATTUNE_BASE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct at_nearest {
    const char *text; /* the unknown word, `length` characters of it */
    size_t length;
    const char *word; /* the nearest one so far; NULL: none is near enough */
    size_t distance;  /* a word must be nearer than this */
} at_nearest;

/* Starts a search. A third of the letters may be wrong, and one letter of three. Two letters must all be right, and
 * words beyond 40 letters are near to nothing. */
at_nearest at_nearest_to(const char *text, size_t length);

/* Keeps the word if it is nearer than those before. Letters that are missing, added, replaced or swapped with their
 * neighbour count as one each; upper case counts as lower case. `word` must outlive the search. */
void at_nearest_try(at_nearest *search, const char *word);

/* Whether two words are equal, whatever their case. */
bool at_same_word(const char *text, size_t length, const char *word);

#endif
