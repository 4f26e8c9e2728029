/* Problems from text, in tests of problems themselves. */
#ifndef ATTUNE_TESTS_PROBLEMS_H
#define ATTUNE_TESTS_PROBLEMS_H

#include "schedule/schedule_fields.h"
#include "problem/mha.h"
#include "target/description.h"
#include "target/target.h"

/* The test fails if the text does not parse, or has no canonical form. */
attune_problem problem_parsed(const char *text);
attune_problem problem_canonical(const char *text);

/* Whether the problems have one key. */
bool problems_share_key(const char *a, const char *b);

/* The smallest schedule of q-lanes whose sums are in the order of reproducible kernels. */
mha_schedule schedule_reproducible(const attune_problem *canonical, const at_target *target);

/* What is chosen for the problem and the usual machine of a target. */
mha_schedule schedule_chosen(const char *problem, const char *target);

/* The machine whose schedules tests take where none is asked for. */
static inline const at_description *usual_machine(const at_target *target) {
    return at_description_generic(target->required & AT_CPU_AARCH64);
}

typedef struct refusal {
    const char *text, *says; /* part of the message */
} refusal;

/* The test fails unless each text is refused when it is parsed, and nothing is changed. */
void assert_texts_refused(const refusal *cases, size_t count);

/* The test fails unless each text parses, and is refused as a problem. */
void assert_problems_refused(const refusal *cases, size_t count);

/* An int of attune_problem that no text can say. */
typedef struct wrong_value {
    size_t offset;
    int value;
    const char *says;
} wrong_value;

/* The test fails unless the problem is refused with each of these values. */
void assert_values_refused(const char *problem, const wrong_value *cases, size_t count);

/* For calls of the API: NULL stays NULL. */
#define TEXT_OF(schedule) ((schedule) ? mha_schedule_text(schedule).text : NULL)

/* A schedule with all fields, and attune_schedule_choose's. */
mha_schedule schedule_read(const char *text);
mha_schedule schedule_chosen_by(const attune_context *context, const attune_problem *problem);

#endif
