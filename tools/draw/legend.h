/* The legend's words: the scale, the other colours, the axes, and how many tokens share a cell or a label. */
#ifndef ATTUNE_TOOLS_LEGEND_H
#define ATTUNE_TOOLS_LEGEND_H

#include "colour.h"
#include "draw.h"
#include "layout.h"

typedef struct legend_item {
    colour colour;
    bool has_stripes, has_swatch, is_faint;
    char text[128];
} legend_item;

/* The first item is the colour scale. */
typedef struct legend {
    legend_item items[LAYOUT_MAX_LEGEND];
    size_t count;
    double bar_ems; /* of the scale's colours */
} legend;

/* From a swatch to its text. */
static const double legend_swatch_ems = 1.7;

/* Only colours that are in the picture, in items no wider than `most_ems` if there is a space to break them at. A
 * layout adds how tokens share labels and cells; it may be NULL. */
void legend_make(legend *legend, const draw_picture *picture, const layout *layout, double most_ems);

/* The width of an item. */
double legend_ems(const legend *legend, size_t i);

/* Whether a query, of all heads' queries, sees no key. */
bool legend_row_is_hidden(const float *values, const unsigned char *hidden, size_t columns, size_t row);

#endif
