/* Ctrl-C and SIGTERM in commands that keep their results. */
#ifndef ATTUNE_TOOLS_INTERRUPTION_H
#define ATTUNE_TOOLS_INTERRUPTION_H

#include <stdbool.h>

/* From now on the first signal is only noted, and a second one ends the process as usual. On a terminal a line on
 * stderr says that the command is stopping; the next message replaces it. */
void interruption_catch(void);
bool interruption_came(void);

#endif
