/* Ctrl-C and SIGTERM in commands that keep what they have done. */
#ifndef ATTUNE_TOOLS_INTERRUPTION_H
#define ATTUNE_TOOLS_INTERRUPTION_H

#include <stdbool.h>

/* From now on the first of them is only noted. A second one ends the process at once, as it would have otherwise. On a
 * terminal a line on stderr says that it came, which the next message replaces. */
void interruption_catch(void);
bool interruption_came(void);

#endif
