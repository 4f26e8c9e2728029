/* Problems as text, and the defaults of a problem. */
#ifndef ATTUNE_TOOLS_PROBLEM_TEXT_H
#define ATTUNE_TOOLS_PROBLEM_TEXT_H

#include <attune.h>
#include <stdbool.h>

/* Reads and checks a problem given on the command line. An error message is printed on failure. */
bool problem_from_text(const char *text, attune_problem *problem);

/* Whether it is a description of another operator than attention: op=linear,... */
bool problem_text_is_described(const char *text);

/* Reports why the library could not read a problem. */
void problem_refuse(void);

/* Whether a problem's text has this pair, "layout=bshd": blanks do not count. text may be NULL. */
bool problem_text_has(const char *text, const char *pair);

/* Canonical text of a problem; free it. NULL when out of memory. */
char *problem_text(const attune_problem *problem);

/* Fills in the fields whose default depends on others: num_kv_heads, seq_kv, head_dim_v, dtypes and sizes of a block.
 */
void problem_fill_defaults(attune_problem *problem);

#endif
