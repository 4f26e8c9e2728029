/* Threads for measuring. They begin together, and only the time in which they work counts. */
#ifndef ATTUNE_TOOLS_CREW_H
#define ATTUNE_TOOLS_CREW_H

#include <stdint.h>

typedef struct crew crew;

/* The work of one member. Members count from 0, the thread that calls crew_run. */
typedef void crew_fn(void *argument, uint32_t member);

/* `members` threads, the caller being one of them. NULL after an error message. The others sleep between the runs. */
crew *crew_create(uint32_t members);
void crew_destroy(crew *c);

/* Runs fn in every member. Returns the harmonic mean of the microseconds that the members take, so the speed of all
 * together is the number of members divided by it. The time to wake them up does not count. */
double crew_run(crew *c, crew_fn *fn, void *argument);

#endif
