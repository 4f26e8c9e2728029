/* Line charts as PNG or SVG, in the same plug-in as the heat maps. */
#ifndef ATTUNE_TOOLS_CHART_H
#define ATTUNE_TOOLS_CHART_H

#include "draw.h"

typedef struct chart_line {
    const char *label;
    size_t count;
    const double *x, *y; /* finite; x ascending, and positive with a logarithmic scale */
} chart_line;

/* All text is UTF-8 without control characters. */
typedef struct chart {
    const char *title, *x_title, *y_title;
    const char *subtitle; /* NULL: none */
    const chart_line *lines;
    size_t num_lines;           /* 1 to CHART_MAX_LINES */
    bool x_is_log;              /* to the base of two */
    const char *const *x_names; /* NULL, or the names at x = 0, 1, ...; then no lines join the points */
    double y_high;              /* the y axis goes from 0 to here, > 0; higher points lie there */
    bool y_is_share;            /* 1 is written as 100 % */
} chart;

enum { CHART_MAX_LINES = 24 };

/* As attune_draw_2; low and high of the result mean nothing. */
typedef bool chart_fn(const chart *chart, draw_format format, draw_result *result, char message[DRAW_MESSAGE_BYTES]);
#define CHART_SYMBOL "attune_chart_2"
__attribute__((visibility("default"))) chart_fn attune_chart_2;

#endif
