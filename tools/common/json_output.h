/* The frame of all JSON that commands print: a schema number, a header (machine, versions, threads), then the members
 * of the command. docs/json.md describes it for users. */
#ifndef ATTUNE_TOOLS_JSON_OUTPUT_H
#define ATTUNE_TOOLS_JSON_OUTPUT_H

#include "common/tool.h"

#include <jansson.h>

/* Raised when a member changes its meaning or goes away. */
enum { JSON_SCHEMA = 2 };

/* {"schema": 2, "header": {…}} and the members of `body`, whose reference it takes. threads 0: those of the machine
 * info. NULL when out of memory, and if `body` is NULL. */
json_t *json_document(const attune_machine_info *machine, uint32_t threads, json_t *body);

/* Prints such a document. An exit code. */
int json_print(const attune_machine_info *machine, uint32_t threads, json_t *body);

/* The same with the machine info of a context. */
int json_print_for(const attune_context *context, uint32_t threads, json_t *body);

/* Reads a file of JSON, "results of sweeps", each of which is a "sweep". NULL after a message. */
json_t *json_read(const char *path, const char *what, const char *each);

/* The document as the text of a file; free it. NULL when out of memory, and if it is NULL. Takes no reference. */
char *json_file_text(const json_t *document);

/* A number, or null if it is not finite: JSON has neither infinity nor NaN. */
json_t *json_number(double value);

#endif
