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

int layout_margin(int header_size) { return pixels(1.3, header_size); }

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

/* Numbers that are easy to count by: up to 6, then 10, 15, 20, 25, then 1, 2, 2.5 and 5 times a power of ten. */
static int round_stride(double stride) {
    if (stride <= 6) return (int)ceil(stride);
    if (stride <= 25) return 5 * (int)ceil(stride / 5);
    const double power = pow(10, floor(log10(stride))), ratio = stride / power;
    return (int)(power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 2.5 ? 2.5 : ratio <= 5 ? 5 : 10));
}

/* Labels of `size` pixels do not overlap. Those of hundreds of tokens are for orientation: MOST_LABELS suffice. */
static int stride_of(size_t tokens, int cell, int share, int size) {
    enum { MOST_LABELS = 64 };
    const double least = ceil((size + 1.0) * share / cell);
    return round_stride(least > 6 ? fmax(least, ceil((double)tokens / MOST_LABELS)) : least);
}

/* A few rows or columns are broad enough to be seen, however many there are in the other direction. */
static int side_of(size_t count, int cell, int least) {
    enum { FEW = 8 };
    return count <= FEW && cell < least ? least : cell;
}

static layout layout_of_cells(const layout_request *r, int cell, size_t row_share, size_t column_share) {
    const double rows = ceil((double)r->rows / (double)row_share),
                 columns = ceil((double)r->columns / (double)column_share);
    return (layout){.cell_width = r->cell ? cell : side_of(r->columns, cell, 12),
                    .cell_height = r->cell ? cell : side_of(r->rows, cell, 16),
                    .row_share = (int)row_share,
                    .column_share = (int)column_share,
                    .rows = (int)fmin(rows, LAYOUT_MAX_SIDE + 1),
                    .columns = (int)fmin(columns, LAYOUT_MAX_SIDE + 1)};
}

/* Of labels of at least so many pixels. */
static bool try_labels(const layout_request *r, const layout *cells, int least_label, double most_width, layout *l) {
    *l = *cells;
    const double width = (double)l->columns * l->cell_width, height = (double)l->rows * l->cell_height;
    if (width > LAYOUT_MAX_SIDE || height > LAYOUT_MAX_SIDE || r->heads > LAYOUT_MAX_SIDE) return false;
    l->matrix_width = (int)width;
    l->matrix_height = (int)height;
    l->label_size = clamp(0.9 * fmin(l->cell_width, l->cell_height), least_label, LARGE_LABEL);
    l->row_stride = stride_of(r->rows, l->cell_height, l->row_share, least_label);
    l->column_stride = stride_of(r->columns, l->cell_width, l->column_share, least_label);
    l->head_title_size = clamp(sqrt(width * height) / 40, 13, 30);
    const int left = pixels(r->row_label, l->label_size) + LAYOUT_LABEL_GAP;
    const int above = pixels(1.7, l->head_title_size);
    l->turns_columns = pixels(r->column_label, l->label_size) > l->column_stride * l->cell_width / l->column_share - 4;
    const int below = pixels(l->turns_columns ? r->column_label : 1, l->label_size) + LAYOUT_LABEL_GAP;
    /* A title is centered above its matrix, and may be wider. */
    const int title = pixels(r->head_title, l->head_title_size), overhang = (title - l->matrix_width) / 2;
    const int to_left = overhang > left ? overhang : left, to_right = overhang > 0 ? overhang : 0;
    const int gap = l->head_title_size;
    l->pitch = (layout_point){to_left + l->matrix_width + to_right + gap, above + l->matrix_height + below + gap};
    choose_grid(r, most_width - 2 * layout_margin(clamp(most_width / 80, LAYOUT_LEAST_HEADER, 40)), l);
    const double grid_width = (double)l->grid_columns * l->pitch.x, grid_height = (double)l->grid_rows * l->pitch.y;
    if (grid_width > LAYOUT_MAX_SIDE || grid_height > LAYOUT_MAX_SIDE) return false;
    l->header_size = clamp(grid_width / 80, LAYOUT_LEAST_HEADER, 40);
    l->title_size = pixels(1.35, l->header_size);
    l->margin = layout_margin(l->header_size);
    const int inner = (int)fmax(grid_width - gap, pixels(header_width(r), l->header_size));
    l->width = inner + 2 * l->margin;
    const int header_end = place_header(r, l);
    const int spare = inner - ((int)grid_width - gap);
    l->first = (layout_point){l->margin + spare / 2 + to_left, header_end + above};
    l->height = header_end + (int)grid_height - gap + l->margin;
    return l->width <= LAYOUT_MAX_SIDE && l->height <= LAYOUT_MAX_SIDE && (double)l->width * l->height <= max_pixels;
}

/* Labels are as large as the width of the picture asks for, if there is room for that. */
static bool try_cells(const layout_request *r, const layout *cells, double most_width, layout *l) {
    if (!try_labels(r, cells, LEAST_LABEL, most_width, l)) return false;
    const int wanted = clamp((double)l->width / WIDTH_OF_LABEL, LEAST_LABEL, LARGE_LABEL);
    layout larger;
    if (wanted > LEAST_LABEL && try_labels(r, cells, wanted, most_width, &larger) && larger.width <= most_width)
        *l = larger;
    return true;
}

static bool try_shares(const layout_request *r, size_t row_share, size_t column_share, int width, layout *l) {
    const layout cells = layout_of_cells(r, 1, row_share, column_share);
    return try_cells(r, &cells, width, l) && l->width <= width;
}

/* As few tokens to a pixel as possible: of keys, or of both where the matrix would lose its shape otherwise; of queries
 * where they make it too high. */
static bool share_pixels(const layout_request *r, int width, layout *l) {
    const size_t most = r->rows > r->columns ? r->rows : r->columns;
    const bool is_flat = r->rows < r->columns / 4;
    for (size_t share = 1; share <= most; share++)
        if (try_shares(r, share, 1, width, l) || try_shares(r, is_flat ? 1 : share, share, width, l) ||
            try_shares(r, share, share, width, l))
            return true;
    return false;
}

bool layout_make(const layout_request *r, layout *l) {
    const int width = r->width ? r->width : DRAW_USUAL_WIDTH;
    if (r->cell) {
        const layout cells = layout_of_cells(r, r->cell, 1, 1);
        return try_cells(r, &cells, LAYOUT_MAX_SIDE, l);
    }
    /* Large where there are few; as large as the width allows if that was asked for. No higher than it may be wide,
     * except where the header alone is high. */
    enum { ALWAYS_HIGH = 600 };
    const int highest = width > ALWAYS_HIGH ? width : ALWAYS_HIGH;
    const double most = fmax((double)r->rows, (double)r->columns);
    const int largest = r->width ? DRAW_MAX_CELL : clamp(480 / most, LEAST_LABEL + 1, 44);
    for (int cell = largest; cell >= 1; cell--) {
        const layout cells = layout_of_cells(r, cell, 1, 1);
        if (try_cells(r, &cells, width, l) && l->width <= width && l->height <= highest) return true;
    }
    return share_pixels(r, width, l);
}

layout_point layout_matrix(const layout *l, size_t head) {
    const int row = (int)head / l->grid_columns, column = (int)head % l->grid_columns;
    return (layout_point){l->first.x + column * l->pitch.x, l->first.y + row * l->pitch.y};
}
