/* Heat maps of attention weights as PNG or SVG: the interface of libattune-draw.so, which alone links to cairo. The
 * command loads it when a picture is asked for, so that no other subcommand starts slower or needs cairo. */
#ifndef ATTUNE_TOOLS_DRAW_H
#define ATTUNE_TOOLS_DRAW_H

#include <stdbool.h>
#include <stddef.h>

typedef enum draw_format { DRAW_PNG, DRAW_SVG } draw_format;

/* All text is UTF-8 without control characters. */
typedef struct draw_picture {
    size_t heads, rows, columns;      /* each >= 1 */
    const float *values;              /* [heads, rows, columns] */
    const unsigned char *hidden;      /* the same shape: 1 where a query does not see the key */
    const char *const *head_titles;   /* [heads] */
    const char *const *row_labels;    /* [rows]: queries */
    const char *const *column_labels; /* [columns]: keys */
    const char *title;                /* NULL: none */
    const char *scale_title;          /* of the colour scale */
    const char *hidden_title;         /* the name of hidden cells */
    bool starts_at_zero;              /* the colour scale begins at 0, not at the smallest value */
    bool is_sqrt;                     /* colours by the square root of the distance to the scale's beginning */
    int cell;                         /* pixels of a cell's side; 0: as many as look well */
    int width;                        /* pixels that the picture may be wide; 0: DRAW_USUAL_WIDTH, or more if there
                                       * are more tokens than that. Means nothing with a cell */
} draw_picture;

typedef struct draw_result {
    unsigned char *data; /* of the file; free it */
    size_t bytes;
    int width, height;
    double low, high; /* the ends of the colour scale */
} draw_result;

enum { DRAW_MESSAGE_BYTES = 256, DRAW_MAX_CELL = 200 };
enum { DRAW_LEAST_WIDTH = 200, DRAW_USUAL_WIDTH = 2400, DRAW_MOST_WIDTH = 32000 };

/* false and a sentence if memory runs out, the picture would be too large or no font can be found. */
typedef bool draw_fn(const draw_picture *picture, draw_format format, draw_result *result,
                     char message[DRAW_MESSAGE_BYTES]);

/* The one symbol. Its name is of this version of the structs above: another version is not found. */
#define DRAW_SYMBOL "attune_draw_2"
__attribute__((visibility("default"))) draw_fn attune_draw_2;

#endif
