/* Pictures are drawn on canvases: PNG (canvas_png.c) or SVG (canvas_svg.c). A canvas that fails says so at the end. */
#ifndef ATTUNE_TOOLS_CANVAS_H
#define ATTUNE_TOOLS_CANVAS_H

#include "colour.h"
#include "draw.h"

#include <stdio.h>

typedef enum canvas_anchor { ANCHOR_START, ANCHOR_MIDDLE, ANCHOR_END } canvas_anchor;

/* A line of text; x and y are its anchor on the baseline. */
typedef struct canvas_text {
    const char *text;
    const char *full; /* the whole text where `text` is shortened; else NULL */
    int x, y, size;
    canvas_anchor anchor;
    bool is_bold;
    bool is_turned; /* reads upwards */
    colour colour;
} canvas_text;

/* A matrix of cells. */
typedef struct canvas_cells {
    int width, height; /* of a cell in pixels */
    const colour *colours;
    int rows, columns;
} canvas_cells;

typedef struct canvas canvas;
typedef struct canvas_type {
    /* NULL: out of memory. A PNG has `zoom` pixels for each unit of the calls below. */
    canvas *(*create)(int width, int height, int zoom, const char *title, FILE *file);
    /* Things that belong together, with a name such as "head". They do not nest. */
    void (*begin_group)(canvas *c, const char *name, const char *title);
    void (*end_group)(canvas *c);
    void (*rectangle)(canvas *c, int x, int y, int width, int height, colour fill);
    /* A line of two units. */
    void (*line)(canvas *c, double x0, double y0, double x1, double y1, colour stroke);
    /* A closed area within `count` corners: x and y of each. */
    void (*polygon)(canvas *c, const double *corners, int count, colour fill);
    /* Stripes over a rectangle that is drawn already. */
    void (*stripes)(canvas *c, int x, int y, int width, int height);
    /* Cells row by row. Where the zoom is 1. */
    void (*cells)(canvas *c, int x, int y, const canvas_cells *cells);
    void (*text)(canvas *c, const canvas_text *text);
    /* Writes the rest of the file and frees the canvas; false if anything failed. */
    bool (*finish)(canvas *c);
} canvas_type;

extern const canvas_type canvas_png, canvas_svg;

/* Width of a line of text in ems. Negative: there is no font. */
double canvas_measure(const char *text, bool is_bold);

/* Cells as a PNG; false on failure. */
bool canvas_encode_cells(const canvas_cells *cells, FILE *file);

/* The width of a stripe, of which every other one is drawn. */
enum { CANVAS_STRIPE = 3 };

#endif
