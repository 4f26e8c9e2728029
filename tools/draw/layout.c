#include "layout.h"

#include "draw.h"

#include <math.h>

/* The most that is kept in memory, at four bytes a pixel. */
static const double max_pixels = 250e6;
/* Pixels of the smallest label, and of the largest: in pictures that are wider than screens, which show them smaller.
 */
enum { LEAST_LABEL = 10, LARGE_LABEL = 14, WIDTH_OF_LABEL = 170 };

static int clamp(double value, int low, int high) { return (int)lround(fmin(fmax(value, low), high)); }

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

static int pixels(double ems, int size) { return (int)ceil(ems * size); }

/* ---- The grid of heads ---- */

/* How far `columns` columns are from a picture half as wide again as high, with no empty places. */
static double badness(size_t heads, int columns, layout_point pitch) {
    const int rows = ceil_div((int)heads, columns);
    const double aspect = (double)columns * pitch.x / ((double)rows * pitch.y);
    return fabs(log(aspect / 1.5)) + 3 * ((double)rows * columns - (double)heads) / (double)heads;
}

/* No wider than `width`, unless a single column is. */
static void choose_grid(const layout_request *r, double width, layout *l) {
    l->grid_columns = 1;
    for (int columns = 2; columns <= (int)r->heads && (double)columns * l->pitch.x <= width; columns++)
        if (badness(r->heads, columns, l->pitch) < badness(r->heads, l->grid_columns, l->pitch))
            l->grid_columns = columns;
    l->grid_rows = ceil_div((int)r->heads, l->grid_columns);
}

/* ---- Above the grid: title, colour scale, the other colours ---- */

static double header_width(const layout_request *r) {
    double widest = fmin(1.35 * r->title, 60);
    for (size_t i = 0; i < r->num_legend; i++) widest = fmax(widest, r->legend[i]);
    return widest;
}

/* Returns where the header ends. */
static int place_header(const layout_request *r, layout *l) {
    const int size = l->header_size, end = l->width - l->margin;
    int y = l->margin, x = l->margin;
    if (r->title > 0) {
        l->title_y = y + l->title_size;
        y += pixels(1.7, l->title_size);
    }
    y += size;
    /* The first item is the colour scale, whose numbers are below it. */
    int below = pixels(1.6, size);
    for (size_t i = 0; i < r->num_legend; i++) {
        const int width = pixels(r->legend[i], size);
        if (x > l->margin && x + width > end) {
            x = l->margin;
            y += pixels(1.7, size) + below;
            below = 0;
        }
        l->legend[i] = (layout_point){x, y};
        x += width + 2 * size;
    }
    return y + below + size;
}

/* ---- Everything for one size of cells ---- */

/* Every second to sixth token, or every tenth, fifteenth and so on: numbers that are easy to count by. */
static int round_stride(int stride) { return stride <= 6 ? stride : 5 * ceil_div(stride, 5); }

/* Of labels of at least so many pixels. */
static bool try_labels(const layout_request *r, int cell, int least_label, double most_width, layout *l) {
    *l = (layout){.cell = cell};
    const double width = (double)r->columns * cell, height = (double)r->rows * cell;
    if (width > LAYOUT_MAX_SIDE || height > LAYOUT_MAX_SIDE || r->heads > LAYOUT_MAX_SIDE) return false;
    l->matrix_width = (int)width;
    l->matrix_height = (int)height;
    l->label_size = clamp(0.9 * cell, least_label, LARGE_LABEL);
    l->stride = round_stride(ceil_div(least_label + 1, cell));
    l->head_title_size = clamp(sqrt(width * height) / 40, 13, 30);
    const int left = pixels(r->row_label, l->label_size) + LAYOUT_LABEL_GAP;
    const int above = pixels(1.7, l->head_title_size);
    l->turns_columns = pixels(r->column_label, l->label_size) > l->stride * cell - 4;
    const int below = pixels(l->turns_columns ? r->column_label : 1, l->label_size) + LAYOUT_LABEL_GAP;
    /* A title is centered above its matrix, and may be wider. */
    const int title = pixels(r->head_title, l->head_title_size), overhang = (title - l->matrix_width) / 2;
    const int to_left = overhang > left ? overhang : left, to_right = overhang > 0 ? overhang : 0;
    const int gap = l->head_title_size;
    l->pitch = (layout_point){to_left + l->matrix_width + to_right + gap, above + l->matrix_height + below + gap};
    choose_grid(r, most_width - 2 * pixels(1.3, clamp(most_width / 80, 13, 40)), l);
    const double grid_width = (double)l->grid_columns * l->pitch.x, grid_height = (double)l->grid_rows * l->pitch.y;
    if (grid_width > LAYOUT_MAX_SIDE || grid_height > LAYOUT_MAX_SIDE) return false;
    l->header_size = clamp(grid_width / 80, 13, 40);
    l->title_size = pixels(1.35, l->header_size);
    l->margin = pixels(1.3, l->header_size);
    const int inner = (int)fmax(grid_width - gap, pixels(header_width(r), l->header_size));
    l->width = inner + 2 * l->margin;
    const int header_end = place_header(r, l);
    const int spare = inner - ((int)grid_width - gap);
    l->first = (layout_point){l->margin + spare / 2 + to_left, header_end + above};
    l->height = header_end + (int)grid_height - gap + l->margin;
    return l->width <= LAYOUT_MAX_SIDE && l->height <= LAYOUT_MAX_SIDE && (double)l->width * l->height <= max_pixels;
}

/* Labels are as large as the width of the picture asks for, if there is room for that. */
static bool try_cell(const layout_request *r, int cell, double most_width, layout *l) {
    if (!try_labels(r, cell, LEAST_LABEL, most_width, l)) return false;
    const int wanted = clamp((double)l->width / WIDTH_OF_LABEL, LEAST_LABEL, LARGE_LABEL);
    layout larger;
    if (wanted > LEAST_LABEL && try_labels(r, cell, wanted, most_width, &larger) && larger.width <= most_width)
        *l = larger;
    return true;
}

bool layout_make(const layout_request *r, layout *l) {
    const int width = r->width ? r->width : DRAW_USUAL_WIDTH;
    if (r->cell) return try_cell(r, r->cell, LAYOUT_MAX_SIDE, l);
    /* Large where there are few; as large as the width allows if that was asked for. No higher than it may be wide. */
    const double most = fmax((double)r->rows, (double)r->columns);
    const int largest = r->width ? DRAW_MAX_CELL : clamp(480 / most, LEAST_LABEL + 1, 44);
    for (int cell = largest; cell >= 1; cell--)
        if (try_cell(r, cell, width, l) && l->width <= width && l->height <= width) return true;
    if (try_cell(r, 1, width, l) && l->width <= width) return true;
    return !r->width && try_cell(r, 1, LAYOUT_MAX_SIDE, l);
}

layout_point layout_matrix(const layout *l, size_t head) {
    const int row = (int)head / l->grid_columns, column = (int)head % l->grid_columns;
    return (layout_point){l->first.x + column * l->pitch.x, l->first.y + row * l->pitch.y};
}
