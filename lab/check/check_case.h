/* One case of `attune-lab check`: everything that decides its outcome, drawn at random, run, shrunk and printed. */
#ifndef ATTUNE_TOOLS_CHECK_CASE_H
#define ATTUNE_TOOLS_CHECK_CASE_H

#include "common/tensors.h"
#include "run/check_reference.h"
#include "schedule_fields.h"

enum { CHECK_MAX_ISAS = 8, CHECK_MAX_THREADS = 3 };

typedef struct check_case {
    attune_problem problem;
    call_sizes sizes;      /* at run time */
    mha_schedule schedule; /* all numbers set */
    uint32_t isa;          /* index into check_machine.isas */
    uint32_t threads;      /* 1 to CHECK_MAX_THREADS */
    input_kind inputs;
    bool ftz;      /* the caller flushes denormals */
    uint64_t seed; /* of the inputs */
} check_case;

/* Contexts for each ISA and number of threads, opened when first needed, without a disk cache. */
typedef struct check_machine {
    const char *isas[CHECK_MAX_ISAS];
    uint32_t num_isas;
    attune_context *contexts[CHECK_MAX_ISAS][CHECK_MAX_THREADS];
} check_machine;

attune_context *check_context(check_machine *machine, uint32_t isa, uint32_t threads); /* NULL after a message */
void check_close(check_machine *machine);

/* What is drawn: every kind of problem, or only those with functions on scores, masks or probabilities. */
typedef enum check_kind { CHECK_ALL_KINDS, CHECK_FUNCTIONS } check_kind;

/* Draws problem, schedule, inputs and the rest. `max_flops` bounds the size. false after a message. */
bool check_draw(check_machine *machine, tool_random *random, check_kind kind, double max_flops, check_case *c);

/* Its problem alone, of any kind, with the run-time sizes of one call. */
bool check_draw_problem(tool_random *random, double max_flops, attune_problem *problem, call_sizes *sizes);

/* The same with functions. */
bool check_draw_functions(tool_random *random, double max_flops, attune_problem *problem, call_sizes *sizes);

/* The chosen schedule with what `text` changes (NULL: nothing). false: the library's last message says why. */
bool check_take_schedule(const attune_context *context, check_case *c, const char *text);

/* A legal schedule for the problem: mostly random, else the chosen one. false after a message. */
bool check_draw_schedule(check_machine *machine, tool_random *random, check_case *c);

/* The outcome of a case. */
typedef enum check_outcome {
    CHECK_PASSED = 0,
    CHECK_NOT_CREATED, /* no tensors, or no contents for them */
    CHECK_NOT_COMPILED,
    CHECK_NOT_RUN,
    CHECK_NOT_INTERPRETED,
    CHECK_MODE_CHANGED,   /* the caller's floating-point mode */
    CHECK_DIFFERENT_BITS, /* machine code and interpreter */
    CHECK_NOT_REPRODUCED, /* reproducible=1, and another schedule gives other bits */
    CHECK_WRONG,          /* by the reference */
} check_outcome;

/* Runs a case. `reason` says in one sentence why it did not pass. `errors` (may be NULL) receives the case's errors if
 * its data is finite. */
check_outcome check_run(check_machine *machine, const check_case *c, check_errors *errors,
                        char reason[ATTUNE_MESSAGE_BYTES]);

/* Measures the errors of a case with the chosen schedule; compares with the reference only. */
check_outcome check_measure(check_machine *machine, const check_case *c, check_errors *errors,
                            char reason[ATTUNE_MESSAGE_BYTES]);

/* Prints, as Markdown, the errors of each combination of types on fixed problems for each ISA, or appends them to the
 * JSON array `rows` if there is one. false after a message: something failed, or is less accurate than promised.
 * Problems of more operations are left out. */
struct json_t;
bool check_accuracy(check_machine *machine, uint64_t seed, double max_flops, struct json_t *rows);

/* Makes a failing case as small as possible while it fails in the same way; `reason` is that of the smallest. */
void check_shrink(check_machine *machine, check_case *c, check_outcome outcome, char reason[ATTUNE_MESSAGE_BYTES]);

/* check_shrink_functions.c: step `move` of the ways to make functions smaller; false when there are no more. What it
 * leaves may be no problem any more. */
bool check_shrink_function(attune_problem *p, int move);

/* The command that runs this case again; free it. */
char *check_command(const check_machine *machine, const check_case *c);

#endif
