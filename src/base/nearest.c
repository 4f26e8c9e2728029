/* The distance of two words is how many letters must be inserted, removed, replaced or swapped with their neighbours;
 * case does not count. */
#include "base/nearest.h"

#include <string.h>

enum { LONGEST = 40 };

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

at_nearest at_nearest_to(const char *text, size_t length) {
    const size_t most_wrong = length < 3 ? 0 : length / 3;
    return (at_nearest){.text = text, .length = length, .distance = length > LONGEST ? 0 : most_wrong + 1};
}

/* Three rows of the usual table are enough: a swap looks two rows back. */
static size_t distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t rows[3][LONGEST + 1];
    for (size_t j = 0; j <= b_length; j++) rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *const row = rows[i % 3], *const above = rows[(i + 2) % 3], *const two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            const char x = lower(a[i - 1]), y = lower(b[j - 1]);
            row[j] = least(above[j - 1] + (x != y), least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == lower(b[j - 2]) && lower(a[i - 2]) == y)
                row[j] = least(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[a_length % 3][b_length];
}

void at_nearest_try(at_nearest *search, const char *word) {
    const size_t length = strlen(word);
    if (!search->distance || length > LONGEST) return;
    const size_t found = distance(search->text, search->length, word, length);
    if (found >= search->distance) return;
    search->distance = found;
    search->word = word;
}

bool at_same_word(const char *text, size_t length, const char *word) {
    if (strlen(word) != length) return false;
    for (size_t i = 0; i < length; i++)
        if (lower(text[i]) != lower(word[i])) return false;
    return true;
}
