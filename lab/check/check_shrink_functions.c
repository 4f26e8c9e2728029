/* Smaller functions on scores, masks and probabilities, by their text: parts become constants or one of their operands,
 * operands are left out, and with them tensors that nothing reads any more. Whether what is left means anything the
 * library says. */
#include "check/check_case.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum {
    ZERO,
    ONE,
    TRUE,
    FIRST_OPERAND,
    SECOND_OPERAND,
    THIRD_OPERAND,
    WITHOUT_RIGHT,
    WITHOUT_LEFT,
    WITHOUT_ALL_RIGHT,
    WITHOUT_ALL_LEFT,
    NUM_KINDS
};
enum { NUM_FUNCTIONS = 3 };

static bool is_of_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

/* The end of the token at `at`. A number may have a sign within, as 1e-07. */
static size_t token_end(const char *text, size_t at) {
    const bool is_number = isdigit((unsigned char)text[at]);
    size_t end = at + 1;
    const bool may_be_two = text[at] && strchr("=<>!/", text[at]), has_second = text[end] && strchr("=/", text[end]);
    if (!is_of_word(text[at])) return end + (may_be_two && has_second);
    while (is_of_word(text[end]) || (is_number && text[end - 1] == 'e' && strchr("+-", text[end]) && text[end])) end++;
    return end;
}

static size_t after_blanks(const char *text, size_t at) { return at + strspn(text + at, " "); }

/* The end of the brackets that open at `at`; the end of the text if they do not close. */
static size_t brackets_end(const char *text, size_t at) {
    int depth = 0;
    for (; text[at]; at++) {
        if (strchr("([", text[at])) depth++;
        if (strchr(")]", text[at]) && --depth == 0) return at + 1;
    }
    return at;
}

/* The end of the operand at `at`: signs, then a word with its brackets, or brackets. */
static size_t operand_end(const char *text, size_t at) {
    while (text[at] && strchr("-!~", text[at]) && text[at + 1] != '=') at++;
    if (text[at] == '(') return brackets_end(text, at);
    if (!is_of_word(text[at])) return at;
    const size_t end = token_end(text, at);
    return text[end] && strchr("([", text[end]) ? brackets_end(text, end) : end;
}

/* Where the operand begins that ends at `end`; `end` if there is none. */
static size_t operand_begin(const char *text, size_t end) {
    for (size_t at = 0; at < end; at = after_blanks(text, token_end(text, at)))
        if (operand_end(text, at) == end) return at;
    return end;
}

/* Operand number `which` between the brackets of the operand at begin … end - 1; false: there are not so many. */
static bool find_inner(const char *text, size_t begin, size_t end, int which, size_t inner[2]) {
    size_t at = begin;
    while (at < end && !strchr("([", text[at])) at++;
    if (at == end) return false;
    int depth = 0, number = 0;
    inner[0] = ++at;
    for (; at < end; at++) {
        const bool closes = strchr(")]", text[at]) != NULL, ends = depth == 0 && (closes || text[at] == ',');
        inner[1] = at;
        if (ends && number == which) return true;
        if (ends) inner[0] = at + 1, number++;
        depth += closes ? -1 : strchr("([", text[at]) != NULL;
    }
    return false;
}

static bool is_infix(const char *text, size_t at) {
    return at > 0 && text[at - 1] == ' ' && strchr("|^&=!<>+-*/%", text[at]) && text[token_end(text, at)] == ' ';
}

/* Writes `with` in place of begin … end - 1. */
static void replace(char *text, size_t begin, size_t end, const char *with, size_t length) {
    char now[ATTUNE_FUNCTION_BYTES] = "";
    const size_t after = strlen(text) - end;
    if (begin + length + after >= sizeof now) return;
    memcpy(now, text, begin);
    memcpy(now + begin, with, length);
    memcpy(now + begin + length, text + end, after);
    memcpy(text, now, sizeof now);
}

/* Where what is on the one side of `at` ends, or on the other begins: at brackets, commas and the text's ends. */
static size_t side_end(const char *text, size_t at) {
    while (text[at] && !strchr(",)]", text[at])) at = strchr("([", text[at]) ? brackets_end(text, at) : at + 1;
    return at;
}

static size_t side_begin(const char *text, size_t at) {
    for (int depth = 0; at > 0; at--) {
        const char c = text[at - 1];
        if (depth == 0 && strchr("([,", c)) break;
        depth += strchr(")]", c) ? 1 : strchr("([", c) ? -1 : 0;
    }
    return at;
}

/* Leaves out the infix operator at `at` and one side of it: an operand, or all. */
static void leave_out(char *text, size_t at, int kind) {
    const size_t next = after_blanks(text, token_end(text, at));
    if (!is_infix(text, at)) return;
    switch (kind) {
    case WITHOUT_RIGHT: replace(text, at - 1, operand_end(text, next), "", 0); return;
    case WITHOUT_LEFT: replace(text, operand_begin(text, at - 1), next, "", 0); return;
    case WITHOUT_ALL_RIGHT: replace(text, at - 1, side_end(text, next), "", 0); return;
    default: replace(text, side_begin(text, at), next, "", 0);
    }
}

static void apply(char *text, size_t at, int kind) {
    static const char *const constants[] = {[ZERO] = "0", [ONE] = "1", [TRUE] = "true"};
    size_t inner[2];
    const size_t end = operand_end(text, at);
    char part[ATTUNE_FUNCTION_BYTES + 2];
    if (kind >= WITHOUT_RIGHT) {
        leave_out(text, at, kind);
    } else if (end == at || is_infix(text, at)) {
        return;
    } else if (kind <= TRUE) {
        if (!isdigit((unsigned char)text[at])) replace(text, at, end, constants[kind], strlen(constants[kind]));
    } else if (find_inner(text, at, end, kind - FIRST_OPERAND, inner)) {
        inner[0] = after_blanks(text, inner[0]);
        const char *const format = text[at] == '(' ? "%.*s" : "(%.*s)";
        const int length = snprintf(part, sizeof part, format, (int)(inner[1] - inner[0]), text + inner[0]);
        if ((size_t)length < end - at) replace(text, at, end, part, (size_t)length);
    }
}

/* Names need not stand alone: t1 is found in t10, which keeps a tensor that a later move drops. */
static void drop_unused_tensors(attune_problem *p) {
    int kept = 0;
    for (int i = 0; i < ATTUNE_MAX_USER_TENSORS && p->tensors[i].name[0]; i++) {
        const char *const name = p->tensors[i].name;
        if (strstr(p->score_mod, name) || strstr(p->mask_mod, name) || strstr(p->prob_mod, name))
            p->tensors[kept++] = p->tensors[i];
    }
    memset(&p->tensors[kept], 0, (size_t)(ATTUNE_MAX_USER_TENSORS - kept) * sizeof *p->tensors);
}

/* Every move must make less of a function, or shrinking would not end: fewer characters, or as many and fewer letters.
 */
static size_t weight_of(const char *text) {
    size_t letters = 0;
    for (const char *at = text; *at; at++) letters += isalpha((unsigned char)*at) != 0;
    return 2 * strlen(text) + letters;
}

bool check_shrink_function(attune_problem *p, int move) {
    char *const texts[NUM_FUNCTIONS] = {p->score_mod, p->mask_mod, p->prob_mod};
    int token = move / NUM_KINDS;
    for (int i = 0; i < NUM_FUNCTIONS; i++)
        for (size_t at = 0; texts[i][at]; at = after_blanks(texts[i], token_end(texts[i], at))) {
            if (token--) continue;
            char before[ATTUNE_FUNCTION_BYTES];
            memcpy(before, texts[i], sizeof before);
            apply(texts[i], at, move % NUM_KINDS);
            if (weight_of(texts[i]) >= weight_of(before)) memcpy(texts[i], before, sizeof before);
            drop_unused_tensors(p);
            return true;
        }
    return false;
}
