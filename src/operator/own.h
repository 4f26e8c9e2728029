/* Users' operators: a callback writes loop IR for a problem, which is a line of text, and a schedule, which is a few
 * numbers. */
#ifndef ATTUNE_OPERATOR_OWN_H
#define ATTUNE_OPERATOR_OWN_H

#include "operator/operator.h"

enum { AT_OWN_NAME_CHARS = 47, AT_OWN_PROBLEM_CHARS = 511, AT_OWN_CHOICES = 12, AT_OWN_VALUES = 256 };

/* Each choice is printed as NAME=VALUE, with a comma or the final NUL. */
_Static_assert(AT_OWN_CHOICES *(AT_OWN_NAME_CHARS + sizeof "=-2147483648") <= AT_SCHEDULE_TEXT,
               "each schedule is printed whole");

struct attune_ir_writer {
    at_string text;
};

/* Writes the text of a more general problem, whose kernel computes `problem`, too. false: there is none. */
typedef bool at_general_fn(const char *problem, char general[AT_OWN_PROBLEM_CHARS + 1]);

typedef struct at_own {
    at_operator row; /* first member: an at_operation's operator points to the at_own */
    char name[AT_OWN_NAME_CHARS + 1];
    uint32_t version;
    at_general_fn *find_general; /* of attune's own described operators, whose problems are texts that begin with op=;
                                  * NULL: an operator of the user */
    attune_build_fn *build;
    void *user;
    attune_choice choices[AT_OWN_CHOICES]; /* with its own copies of names and values, in one block */
    size_t num_choices;
    uint64_t choices_hash;
    void *block;
    const attune_allocator *allocator;
} at_own;

/* Checks and copies; at_own_free gives the memory back. The allocator stays as long as *own does. */
attune_status at_own_init(at_own *own, const attune_operator_options *options, const attune_allocator *allocator,
                          at_error *err);
void at_own_free(at_own *own);

/* The user's operator with this row; NULL if the row is one of attune's. */
const at_own *at_own_of(const at_operator *row);

/* Whether the row is of attention or of a described operator: their problems mean the same in every program. */
static inline bool at_is_of_attune(const at_operator *row) {
    const at_own *const own = at_own_of(row);
    return own ? own->find_general != NULL : row == &at_attention;
}

/* One line, not too long. */
attune_status at_own_check_problem(const at_own *own, const char *problem, at_error *err);

static inline at_operation at_own_operation(const at_own *own, const char *problem) {
    return (at_operation){&own->row, problem};
}

/* The numbers of a schedule, in the memory where attention has its fields. */
static inline int32_t *at_own_numbers(mha_schedule *schedule) { return (int32_t *)(void *)schedule; }
static inline const int32_t *at_own_numbers_of(const mha_schedule *schedule) {
    return at_own_numbers((mha_schedule *)schedule);
}
_Static_assert(sizeof(mha_schedule) >= AT_OWN_CHOICES * sizeof(int32_t), "they are among the fields that a key holds");

#endif
