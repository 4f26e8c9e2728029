/* Output for people: aligned tables and label/value blocks, units, colour only on a terminal. */
#ifndef ATTUNE_TOOLS_TABLE_H
#define ATTUNE_TOOLS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct table table;

/* `alignments` has a letter for each column: l or r. `headers` has as many names, or is NULL for a label/value block.
 * NULL when out of memory; the other functions accept NULL and do nothing. */
table *table_create(const char *alignments, const char *const *headers);

/* Appends a cell; the row is complete when it has a cell for each column. */
void table_cell(table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sorts the rows by their first cells, then by their second ones. */
void table_sort(table *t);

/* Prints everything to the stream and frees the table. */
void table_finish(table *t, FILE *stream);

void table_discard(table *t);

enum { TABLE_NUMBER_BYTES = 32 };
/* "12.3 µs", "870 ns", "1.24 ms": three digits and a fitting unit. Return `text`. */
const char *table_time(double microseconds, char text[TABLE_NUMBER_BYTES]);
const char *table_duration(double seconds, char text[TABLE_NUMBER_BYTES]); /* "8 s", "3 min 20 s", "2 h 5 min" */
const char *table_bytes(uint64_t bytes, char text[TABLE_NUMBER_BYTES]);

#endif
