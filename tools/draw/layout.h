/* Where everything in a picture goes: arithmetic only, in whole pixels. */
#ifndef ATTUNE_TOOLS_LAYOUT_H
#define ATTUNE_TOOLS_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

enum { LAYOUT_MAX_LEGEND = 24, LAYOUT_MAX_SIDE = 32000 };

/* Widths of text are in ems: multiples of the font's size. */
typedef struct layout_request {
    size_t heads, rows, columns;
    double row_label, column_label, head_title; /* the widest of each */
    double title;                               /* 0: there is none */
    double legend[LAYOUT_MAX_LEGEND];
    size_t num_legend;
    int cell;  /* 0: chosen here, */
    int width; /* so that the picture is no wider than this; 0: than is usual, if it can be */
} layout_request;

typedef struct layout_point {
    int x, y;
} layout_point;

typedef struct layout {
    int width, height, margin;
    int cell_width, cell_height;   /* pixels */
    int row_share, column_share;   /* how many queries and keys share a cell */
    int rows, columns;             /* of cells */
    int row_stride, column_stride; /* every so many tokens have a label */
    bool turns_columns;            /* labels of columns read upwards, as they are wider than the columns */
    int label_size, head_title_size, header_size, title_size; /* of fonts */
    int title_y;                                              /* baseline */
    layout_point legend[LAYOUT_MAX_LEGEND];                   /* left end and baseline */
    int grid_columns, grid_rows;
    int matrix_width, matrix_height;
    layout_point first, pitch; /* the first head's matrix, and the way to the next ones */
} layout;

/* false if the picture would exceed LAYOUT_MAX_SIDE pixels in a direction, the width, or the memory. */
bool layout_make(const layout_request *request, layout *l);

/* Pixels around a picture whose header has this font. */
int layout_margin(int header_size);

/* The upper left cell of a head's matrix. */
layout_point layout_matrix(const layout *l, size_t head);

/* Pixels: the header's smallest font; from a matrix to its labels, ticks included. */
enum { LAYOUT_LEAST_HEADER = 13, LAYOUT_TICK = 4, LAYOUT_LABEL_GAP = 7 };

#endif
