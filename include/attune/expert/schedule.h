/* Expert tier: most programs need attune/attention.h alone.
 *
 * Schedules: how a kernel computes, as text. attune chooses one unless a program passes its own.
 *
 * A schedule is text such as "kv_tile=64,task_prefetch=none"; docs/tuning.md has the fields in a table. A function that
 * takes a schedule takes any of them, in any order. Numbers that are not named are those of attune's own choice for the
 * problem and the machine; choices that are not named are made for these numbers. "" is attune's choice, NULL what
 * attune_compile says of it. A text that names another strategy than the chosen one must name all of its numbers.
 * The fields may change with every version. A schedule that attune prints has all fields and gives the same kernel on
 * every machine of the instruction set. */
#ifndef ATTUNE_SCHEDULE_H
#define ATTUNE_SCHEDULE_H

#include "kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that hold the text of any schedule, with its NUL. */
#define ATTUNE_SCHEDULE_BYTES 1024

/* Chooses a good schedule without measuring, for the context's ISA and machine, and checks it. `schedule` names fields
 * that are to have the caller's values; NULL: none. `text` receives all fields and a NUL; with `capacity` 0 it may be
 * NULL, and the call only checks. ATTUNE_SCHEDULE_BYTES are enough for every schedule. ATTUNE_INVALID_SCHEDULE: a name
 * or value is unknown, or the schedule is not legal for the problem; the message says which and why.
 * ATTUNE_INVALID_ARGUMENT: the text needs more than `capacity` bytes. A failure leaves *text as it was. Thread-safe. */
ATTUNE_CHECKED attune_status attune_schedule_choose(const attune_context *context, const attune_problem *problem,
                                                    const char *schedule, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
