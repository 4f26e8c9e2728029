/* What `attune explain` finds out about one problem, and how it is shown to people. */
#ifndef ATTUNE_TOOLS_EXPLAIN_H
#define ATTUNE_TOOLS_EXPLAIN_H

#include "explain/explain_tasks.h"
#include "explain/explain_tiles.h"
#include "measure/asm_loops.h"
#include "measure/bench.h"

enum { EXPLAIN_LOOPS = 6 };

typedef struct explanation {
    attune_problem problem;                    /* canonical, with the lengths of the call where it leaves them open */
    char *text;                                /* of the problem as it was given */
    char schedule_text[ATTUNE_SCHEDULE_BYTES]; /* with all fields */
    mha_schedule schedule;                     /* the same */
    attune_prediction prediction;
    attune_reason *reasons; /* rules that decided the choice */
    size_t num_reasons;
    bool has_schedule; /* the caller's */
    bool is_kept;      /* the cached kernel's, and another one than would be chosen today */
    bool has_model;    /* it is attention, which is what the model and the tiles are of */
    bool is_measured;
    bool lacks_code; /* there is no compiler, and no cache has the kernel */
    char why_no_code[ATTUNE_MESSAGE_BYTES];
    attune_machine_info machine;
    uint32_t threads, measured_threads; /* those that were asked for, and those that there are */
    task_report tasks;                  /* of a call on more than one thread */
    asm_loop loops[EXPLAIN_LOOPS];      /* that multiply */
    size_t num_loops;
    bool has_tiles;
    tile_cut tiles;
    bench_case bench;
    double predicted_us;
} explanation;

/* All of the model's. */
double explain_cycles(const attune_prediction *p);

void explain_print(const explanation *e);

/* The kernels of a description, op=linear,... Returns an exit code. */
int explain_described(attune_context *context, const char *text, bool json);

#endif
