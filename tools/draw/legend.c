#include "legend.h"

#include "canvas.h"

#include <math.h>
#include <string.h>

bool legend_row_is_hidden(const float *values, const unsigned char *hidden, size_t columns, size_t row) {
    for (size_t i = row * columns; i < (row + 1) * columns; i++)
        if (!hidden[i] || isnan(values[i])) return false;
    return true;
}

double legend_ems(const legend *g, size_t i) {
    const double text = canvas_measure(g->items[i].text, false);
    if (i == 0) return g->bar_ems + (g->items[0].text[0] ? 1 + text : 0);
    return text + (g->items[i].has_swatch ? legend_swatch_ems : 0);
}

/* The last space before which the item is narrow enough, or the first one; NULL: none. */
static char *find_break(legend_item *item, double most_ems) {
    char *found = strchr(item->text, ' ');
    for (char *space = found; space; space = strchr(space + 1, ' ')) {
        *space = 0;
        const bool fits = canvas_measure(item->text, false) <= most_ems - (item->has_swatch ? legend_swatch_ems : 0);
        *space = ' ';
        if (!fits) break;
        found = space;
    }
    return found;
}

/* As one item, or as several lines. */
static void add_item(legend *g, legend_item item, const char *text, double most_ems) {
    while (g->count < LAYOUT_MAX_LEGEND) {
        legend_item *const to = &g->items[g->count++];
        *to = item;
        snprintf(to->text, sizeof to->text, "%s", text);
        char *const end = legend_ems(g, g->count - 1) > most_ems ? find_break(to, most_ems) : NULL;
        if (!end) return;
        text += end - to->text + 1;
        *end = 0;
        item.has_swatch = false;
    }
}

static void add_swatch(legend *g, const char *text, colour c, bool has_stripes, double most_ems) {
    add_item(g, (legend_item){.colour = c, .has_stripes = has_stripes, .has_swatch = true}, text, most_ems);
}

/* A scale with its title beside it or, where that is too wide, below it. */
static void add_scale(legend *g, const draw_picture *p, double most_ems) {
    static const double usual_bar = 16, end_of_number = 1;
    char text[sizeof g->items[0].text];
    snprintf(text, sizeof text, "%s%s", p->scale_title, p->is_sqrt ? "; colours show the square root" : "");
    g->bar_ems = fmin(usual_bar, most_ems - end_of_number);
    g->items[g->count++] = (legend_item){.text = ""};
    if (usual_bar + 1 + canvas_measure(text, false) <= most_ems)
        memcpy(g->items[0].text, text, sizeof text);
    else
        add_item(g, (legend_item){.text = ""}, text, most_ems);
}

static void add_colours(legend *g, const draw_picture *p, double most_ems) {
    bool has_hidden = false, has_nan = false, has_infinity = false, has_empty = false;
    for (size_t row = 0; row < p->heads * p->rows; row++) {
        const bool is_empty = legend_row_is_hidden(p->values, p->hidden, p->columns, row);
        has_empty |= is_empty;
        for (size_t i = row * p->columns; i < (row + 1) * p->columns; i++) {
            has_nan |= isnan(p->values[i]);
            has_infinity |= isinf(p->values[i]) && !p->hidden[i];
            has_hidden |= p->hidden[i] && !is_empty && !isnan(p->values[i]);
        }
    }
    if (has_hidden) add_swatch(g, p->hidden_title, COLOUR_HIDDEN, false, most_ems);
    if (has_empty) add_swatch(g, "query sees no key", COLOUR_HIDDEN, true, most_ems);
    if (has_nan || has_infinity)
        add_swatch(g, !has_infinity ? "NaN" : has_nan ? "NaN or infinite" : "infinite", COLOUR_NAN, false, most_ems);
}

/* "; every second token is named", of tokens with a name. */
static void print_stride(const char *token, int stride, char *text, size_t bytes) {
    static const char *const ordinals[] = {"second", "third", "fourth", "fifth", "sixth"};
    if (stride < 2)
        text[0] = 0;
    else if (stride <= 6 || stride == 10)
        snprintf(text, bytes, "; every %s %s is named", stride == 10 ? "tenth" : ordinals[stride - 2], token);
    else
        snprintf(text, bytes, "; one %s of %d is named", token, stride);
}

static void add_axes(legend *g, const draw_picture *p, const layout *l, double most_ems) {
    char text[128], rows[48] = "", columns[48] = "";
    if (l && l->row_stride == l->column_stride)
        print_stride("token", l->row_stride, rows, sizeof rows);
    else if (l) {
        print_stride("query", l->row_stride, rows, sizeof rows);
        print_stride("key", l->column_stride, columns, sizeof columns);
    }
    snprintf(text, sizeof text, "rows: queries, columns: keys%s%s", rows, columns);
    add_item(g, (legend_item){.is_faint = true}, text, most_ems);
    if (!l || (l->row_share == 1 && l->column_share == 1)) return;
    snprintf(text, sizeof text, "each %s shows the largest of %d x %d %ss",
             l->cell_width == 1 && l->cell_height == 1 ? "pixel" : "cell", l->row_share, l->column_share,
             p->scale_title);
    add_item(g, (legend_item){.is_faint = true}, text, most_ems);
}

void legend_make(legend *g, const draw_picture *p, const layout *l, double most_ems) {
    *g = (legend){.count = 0};
    add_scale(g, p, most_ems);
    add_colours(g, p, most_ems);
    add_axes(g, p, l, most_ems);
}
