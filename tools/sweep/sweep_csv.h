/* A sweep's results as CSV (RFC 4180, but lines end in a line feed): a row for each problem. */
#ifndef ATTUNE_TOOLS_SWEEP_CSV_H
#define ATTUNE_TOOLS_SWEEP_CSV_H

#include "sweep/sweep_file.h"

/* Prints the problems of the list that have a result, in its order: a column for each field of a problem, then the
 * measurements, then the machine. Empty: the problem leaves the field at its default. false after a message. */
bool sweep_print_csv(const manifest *list, const sweep_file *file);

/* The same of an array of results. The machine is that of a result's own header, if it has one, else of `header`. */
bool sweep_print_results_csv(const json_t *results, const json_t *header);

#endif
