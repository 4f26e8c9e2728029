/* Threads for measuring: they begin together, and only the time in which they work counts. */
#ifndef ATTUNE_TOOLS_CREW_H
#define ATTUNE_TOOLS_CREW_H

#include <stdint.h>

typedef struct crew crew;

/* What one member does; `member` counts from 0, which is the thread that calls crew_run. */
typedef void crew_fn(void *argument, uint32_t member);

/* `members` threads, the caller being one of them. NULL after an error message. The others sleep between the runs. */
crew *crew_create(uint32_t members);
void crew_destroy(crew *c);

/* Runs fn in every member. Microseconds that a member takes, as the harmonic mean: what all do together in that time is
 * the sum of their speeds. Waking them up is no part of it. */
double crew_run(crew *c, crew_fn *fn, void *argument);

#endif
