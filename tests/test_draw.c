/* Pictures of attention weights: colours, places, and the contents of PNG and SVG files. */
#include "draw/canvas.h"
#include "draw/draw.h"
#include "draw/layout.h"
#include "draw/pool.h"

#include <cairo.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Colours ---- */

static double linear(double channel) {
    return channel <= 0.04045 ? channel / 12.92 : pow((channel + 0.055) / 1.055, 2.4);
}

/* L* of CIELAB, 0 (black) to 100 (white). */
static double lightness(colour c) {
    const double y = 0.2126 * linear((c >> 16 & 0xff) / 255.0) + 0.7152 * linear((c >> 8 & 0xff) / 255.0) +
                     0.0722 * linear((c & 0xff) / 255.0);
    return y > 0.008856 ? 116 * cbrt(y) - 16 : 903.3 * y;
}

static void test_colour_map_is_even(void **state) {
    (void)state;
    assert_int_equal(colour_map(0), 0x440154);
    assert_int_equal(colour_map(1), 0xfde725);
    assert_int_equal(colour_map(-3), colour_map(0));
    assert_int_equal(colour_map(7), colour_map(1));
    enum { STEPS = 20 };
    const double mean = (lightness(colour_map(1)) - lightness(colour_map(0))) / STEPS;
    for (int i = 0; i < STEPS; i++) {
        const double step = lightness(colour_map((i + 1.0) / STEPS)) - lightness(colour_map((double)i / STEPS));
        assert_true(step > 0.75 * mean && step < 1.25 * mean);
    }
}

static int distance(colour a, colour b) {
    int sum = 0;
    for (int shift = 0; shift <= 16; shift += 8) sum += abs((int)(a >> shift & 0xff) - (int)(b >> shift & 0xff));
    return sum;
}

static void test_other_colours_are_not_in_the_map(void **state) {
    (void)state;
    static const colour others[] = {COLOUR_HIDDEN, COLOUR_NAN, COLOUR_STRIPE};
    for (size_t i = 0; i < 3; i++)
        for (int step = 0; step <= 1000; step++) assert_true(distance(others[i], colour_map(step / 1000.0)) > 90);
    assert_true(distance(COLOUR_HIDDEN, COLOUR_NAN) > 90);
}

static void test_scale(void **state) {
    (void)state;
    const float values[] = {0.25f, NAN, 0.75f, -INFINITY, 9, INFINITY};
    const unsigned char hidden[] = {0, 0, 0, 1, 1, 0};
    colour_scale s = colour_scale_of(values, hidden, 6, true, false);
    assert_true(s.low == 0 && s.high == 0.75);
    s = colour_scale_of(values, hidden, 6, false, false);
    assert_true(s.low == 0.25 && s.high == 0.75);
    assert_true(colour_position(&s, 0.5) == 0.5 && colour_position(&s, 0) == 0 && colour_position(&s, 1) == 1);
    s.is_sqrt = true;
    assert_true(colour_position(&s, 0.375) == 0.5);
    assert_int_equal(colour_of_cell(&s, NAN, true), COLOUR_NAN);
    assert_int_equal(colour_of_cell(&s, NAN, false), COLOUR_NAN);
    assert_int_equal(colour_of_cell(&s, INFINITY, false), COLOUR_NAN);
    assert_int_equal(colour_of_cell(&s, -INFINITY, true), COLOUR_HIDDEN);
    assert_int_equal(colour_of_cell(&s, 0, true), COLOUR_HIDDEN);
    assert_int_equal(colour_of_cell(&s, 0, false), 0x440154);
    /* Nothing to span, and only one value to span. */
    s = colour_scale_of(values + 1, hidden + 1, 1, true, false);
    assert_true(s.low == 0 && s.high == 1);
    s = colour_scale_of(values, hidden, 1, false, false);
    assert_true(s.low == 0.25 && s.high > s.low);
    const float huge[] = {-1e30f, -1e30f}; /* where 1 more is no more */
    s = colour_scale_of(huge, hidden, 2, false, false);
    assert_true(s.low == -1e30f && s.high > s.low && colour_position(&s, s.low) == 0);
}

/* ---- Places ---- */

static bool layout_within(size_t heads, size_t rows, size_t columns, int cell, int width, layout *l) {
    const layout_request request = {.heads = heads,
                                    .rows = rows,
                                    .columns = columns,
                                    .row_label = 4.5,
                                    .column_label = 5.5,
                                    .head_title = 4,
                                    .title = 20,
                                    .legend = {26, 7, 9, 16},
                                    .num_legend = 4,
                                    .cell = cell,
                                    .width = width};
    return layout_make(&request, l);
}

static bool layout_of(size_t heads, size_t rows, size_t columns, int cell, layout *l) {
    return layout_within(heads, rows, columns, cell, 0, l);
}

/* Everything is inside the picture, and nothing over anything else. */
static void check_places(size_t heads, const layout *l) {
    const int left = (int)ceil(4.5 * l->label_size) + LAYOUT_LABEL_GAP;
    const int below = (int)ceil((l->turns_columns ? 5.5 : 1) * l->label_size) + LAYOUT_LABEL_GAP;
    assert_true(l->grid_columns * l->grid_rows >= (int)heads);
    assert_true((l->grid_rows - 1) * l->grid_columns < (int)heads);
    for (size_t i = 0; i < 4; i++) {
        assert_true(l->legend[i].x >= l->margin && l->legend[i].y > l->title_y);
        assert_true(l->legend[i].y + l->header_size < l->first.y - l->head_title_size);
        if (i && l->legend[i].y == l->legend[i - 1].y) assert_true(l->legend[i].x > l->legend[i - 1].x);
    }
    for (size_t a = 0; a < heads; a++) {
        const layout_point at = layout_matrix(l, a);
        assert_true(at.x - left >= 0 && at.x + l->matrix_width < l->width);
        assert_true(at.y - l->head_title_size > 0 && at.y + l->matrix_height + below <= l->height);
        for (size_t b = a + 1; b < heads; b++) {
            const layout_point other = layout_matrix(l, b);
            const bool beside = other.x - left >= at.x + l->matrix_width || at.x - left >= other.x + l->matrix_width;
            assert_true(beside || other.y - l->head_title_size >= at.y + l->matrix_height + below);
        }
    }
}

/* All tokens have cells, and labels that do not overlap and can be read. */
static void check_cells(size_t rows, size_t columns, const layout *l) {
    assert_true((l->rows - 1) * l->row_share < (int)rows && l->rows * l->row_share >= (int)rows);
    assert_true((l->columns - 1) * l->column_share < (int)columns && l->columns * l->column_share >= (int)columns);
    assert_int_equal(l->matrix_width, l->cell_width * l->columns);
    assert_int_equal(l->matrix_height, l->cell_height * l->rows);
    assert_true(l->label_size >= 10);
    assert_true(l->label_size <= (double)l->row_stride * l->cell_height / l->row_share);
    assert_true((l->turns_columns ? 1 : 5.5) * l->label_size <=
                (double)l->column_stride * l->cell_width / l->column_share);
}

static void test_layout(void **state) {
    (void)state;
    static const struct {
        size_t heads, rows, columns;
        int cell, stride, grid_columns; /* that are wanted; the stride is of columns */
    } cases[] = {
        {1, 8, 8, 44, 1, 1},      {1, 1, 1, 44, 1, 1},        {12, 16, 16, 30, 1, 4},   {12, 128, 128, 3, 4, 4},
        {12, 217, 217, 2, 10, 4}, {1, 217, 217, 9, 2, 1},     {32, 512, 512, 1, 15, 3}, {12, 1, 128, 11, 1, 1},
        {7, 40, 40, 12, 2, 4},    {1, 8192, 8192, 1, 200, 1}, {64, 64, 64, 2, 10, 11},  {5, 128, 1, 12, 1, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        layout l;
        assert_true(layout_of(cases[i].heads, cases[i].rows, cases[i].columns, 0, &l));
        assert_int_equal(l.cell_width, cases[i].cell);
        assert_int_equal(l.column_stride, cases[i].stride);
        assert_int_equal(l.grid_columns, cases[i].grid_columns);
        check_cells(cases[i].rows, cases[i].columns, &l);
        assert_true(l.width <= DRAW_USUAL_WIDTH);
        check_places(cases[i].heads, &l);
    }
}

/* As large as the width has room for, and never wider. */
static void test_layout_of_a_width(void **state) {
    (void)state;
    static const size_t cases[][3] = {{1, 8, 8},    {2, 16, 16},  {12, 128, 128}, {64, 64, 64},
                                      {1, 1, 2000}, {1, 2000, 1}, {5, 30, 90},    {1, 150, 150}};
    static const int widths[] = {700, 1200, 2400, 8000};
    layout l;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            assert_true(layout_within(cases[i][0], cases[i][1], cases[i][2], 0, widths[w], &l));
            assert_true(l.width <= widths[w]);
            check_cells(cases[i][1], cases[i][2], &l);
            check_places(cases[i][0], &l);
        }
    assert_true(layout_within(2, 16, 16, 0, 2400, &l));
    assert_true(l.width > 2000);
    assert_true(layout_within(1, 500, 500, 0, 600, &l));
    assert_int_equal(l.column_share, 1);
}

/* Where there are more tokens than pixels, they share these. */
static void test_layout_shares_pixels(void **state) {
    (void)state;
    static const struct {
        size_t heads, rows, columns;
        int width, row_share, column_share;
    } cases[] = {{1, 4096, 4096, 0, 2, 2}, {32, 1, 4096, 0, 1, 2},     {4, 2300, 2300, 0, 2, 2},
                 {1, 700, 700, 600, 2, 2}, {1, 512, 8192, 0, 1, 4},    {1, 40, 40000, 0, 1, 18},
                 {1, 40000, 4, 0, 2, 1},   {1, 20000, 20000, 0, 9, 9}, {3, 33000, 2, 500, 2, 1}};
    layout l;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(layout_within(cases[i].heads, cases[i].rows, cases[i].columns, 0, cases[i].width, &l));
        assert_true(l.width <= (cases[i].width ? cases[i].width : DRAW_USUAL_WIDTH));
        assert_int_equal(l.row_share, cases[i].row_share);
        assert_int_equal(l.column_share, cases[i].column_share);
        check_cells(cases[i].rows, cases[i].columns, &l);
        check_places(cases[i].heads, &l);
    }
}

/* The line of a decoder's one query can be seen, and its axis has no more labels than are read. */
static void test_layout_of_few_rows(void **state) {
    (void)state;
    layout l;
    for (size_t rows = 1; rows <= 8; rows++) {
        assert_true(layout_of(3, rows, 4096, 0, &l));
        assert_true(l.cell_height >= 12 && l.cell_width == 1 && l.row_stride == 1);
        assert_true(4096 / l.column_stride <= 64);
        assert_true(layout_of(3, 4096, rows, 0, &l));
        assert_true(l.cell_width >= 12);
    }
    assert_true(layout_of(3, 1, 4096, 2, &l));
    assert_int_equal(l.cell_height, 2);
}

static void test_layout_has_limits(void **state) {
    (void)state;
    layout l;
    assert_true(layout_of(3, 20, 20, 17, &l));
    assert_int_equal(l.cell_width, 17);
    assert_int_equal(l.cell_height, 17);
    assert_false(layout_of(1, 40, 40000, 1, &l));
    assert_false(layout_of(1, 20000, 20000, 1, &l));
    assert_false(layout_within(5000, 2, 2, 0, 500, &l));
    assert_false(layout_of(1, 300, 300, 200, &l));
    assert_false(layout_of(3000000, 1, 1, 0, &l));
}

/* ---- Pictures ---- */

enum { HEADS = 3, ROWS = 5, COLUMNS = 7, CELL = 13 };

static const char *const titles[] = {"head 4", "head 0", "head <9>"};
static const char *const row_labels[] = {"[CLS]", "##ing", "a<b&c\"d", "naïve", "donaudampfschifffahrtsgesellschaft"};
static const char *const column_labels[] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6"};

typedef struct sample {
    float values[HEADS][ROWS][COLUMNS];
    unsigned char hidden[HEADS][ROWS][COLUMNS];
    draw_picture picture;
} sample;

/* The last cell of each head is NaN, so that it can be found; row 2 sees no key, nor does row 1 see keys 4 and 5. */
static void make_sample(sample *s) {
    *s = (sample){.picture = {HEADS, ROWS, COLUMNS, s->values[0][0], s->hidden[0][0], titles, row_labels, column_labels,
                              "Title & more", "attention weight", "hidden key", true, false, CELL, 0}};
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++) s->values[h][i][j] = (float)((h * 35 + i * 7 + j) % 101) / 100;
        s->values[h][ROWS - 1][COLUMNS - 1] = NAN;
        memset(s->hidden[h][2], 1, COLUMNS);
        s->hidden[h][1][4] = s->hidden[h][1][5] = 1;
    }
}

static draw_result draw_sample(const sample *s, draw_format format) {
    char message[DRAW_MESSAGE_BYTES];
    draw_result result;
    assert_true(attune_draw_2(&s->picture, format, &result, message));
    return result;
}

typedef struct reader {
    const unsigned char *data;
    size_t left;
} reader;

static cairo_status_t read_some(void *closure, unsigned char *data, unsigned int bytes) {
    reader *const r = closure;
    if (bytes > r->left) return CAIRO_STATUS_READ_ERROR;
    memcpy(data, r->data, bytes);
    r->data += bytes;
    r->left -= bytes;
    return CAIRO_STATUS_SUCCESS;
}

static cairo_surface_t *decode(const draw_result *result) {
    reader r = {result->data, result->bytes};
    cairo_surface_t *const image = cairo_image_surface_create_from_png_stream(read_some, &r);
    assert_int_equal(cairo_surface_status(image), CAIRO_STATUS_SUCCESS);
    assert_int_equal(cairo_image_surface_get_width(image), result->width);
    assert_int_equal(cairo_image_surface_get_height(image), result->height);
    return image;
}

static colour pixel(cairo_surface_t *image, int x, int y) {
    const unsigned char *const row = cairo_image_surface_get_data(image) + y * cairo_image_surface_get_stride(image);
    return ((const uint32_t *)row)[x] & 0xffffff;
}

/* The upper left pixels of the heads, by their last cells, which are larger than the square in the legend. */
static void find_heads(cairo_surface_t *image, layout_point found[HEADS]) {
    int count = 0;
    const int width = cairo_image_surface_get_width(image), height = cairo_image_surface_get_height(image);
    for (int y = 0; y + CELL <= height && count < HEADS; y++)
        for (int x = 0; x + CELL <= width && count < HEADS; x++) {
            if (pixel(image, x, y) != COLOUR_NAN || pixel(image, x + CELL - 1, y + CELL - 1) != COLOUR_NAN) continue;
            found[count++] = (layout_point){x - (COLUMNS - 1) * CELL, y - (ROWS - 1) * CELL};
            x += CELL;
        }
    assert_int_equal(count, HEADS);
}

/* All pixels of a cell have one colour: nothing is smoothed. */
static bool is_uniform(cairo_surface_t *image, int x, int y, colour wanted) {
    for (int i = 0; i < CELL * CELL; i++)
        if (pixel(image, x + i % CELL, y + i / CELL) != wanted) return false;
    return true;
}

static void test_png_has_the_values(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    draw_result result = draw_sample(&s, DRAW_PNG);
    assert_true(result.low == 0 && fabs(result.high - 1) < 1e-6);
    assert_memory_equal(result.data, "\x89PNG\r\n\x1a\n", 8);
    cairo_surface_t *const image = decode(&result);
    layout_point heads[HEADS];
    find_heads(image, heads);
    const colour_scale scale = {result.low, result.high, false};
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++) {
                const int x = heads[h].x + j * CELL, y = heads[h].y + i * CELL;
                if (i == 2) continue;
                const bool hidden = i == 1 && (j == 4 || j == 5);
                assert_true(is_uniform(image, x, y, colour_of_cell(&scale, s.values[h][i][j], hidden)));
            }
    /* A row without keys is striped from end to end. */
    int striped = 0, plain = 0;
    for (int x = 0; x < COLUMNS * CELL; x++) {
        const colour c = pixel(image, heads[1].x + x, heads[1].y + 2 * CELL + CELL / 2);
        striped += c != COLOUR_HIDDEN;
        plain += distance(c, COLOUR_HIDDEN) < 30;
        assert_true(distance(c, COLOUR_HIDDEN) <= distance(COLOUR_STRIPE, COLOUR_HIDDEN));
    }
    assert_true(striped > COLUMNS * CELL / 4 && plain > COLUMNS * CELL / 8);
    cairo_surface_destroy(image);
    free(result.data);
}

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) count++;
    return count;
}

static void test_svg_has_text_and_groups(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    const draw_result result = draw_sample(&s, DRAW_SVG);
    char *const svg = (char *)result.data;
    assert_int_equal(strlen(svg), result.bytes);
    assert_int_equal(occurrences(svg, "<svg "), 1);
    assert_int_equal(occurrences(svg, "</svg>\n"), 1);
    assert_int_equal(occurrences(svg, "<g class=\"head\">"), HEADS);
    assert_int_equal(occurrences(svg, "<g "), occurrences(svg, "</g>"));
    assert_int_equal(occurrences(svg, ">head 4</text>"), 1);
    assert_int_equal(occurrences(svg, ">head &lt;9&gt;</text>"), 1);
    assert_int_equal(occurrences(svg, ">Title &amp; more</text>"), 1);
    assert_int_equal(occurrences(svg, ">[CLS]</text>"), HEADS);
    assert_int_equal(occurrences(svg, ">##ing</text>"), HEADS);
    assert_int_equal(occurrences(svg, ">a&lt;b&amp;c&quot;d</text>"), HEADS);
    assert_int_equal(occurrences(svg, ">naïve</text>"), HEADS);
    for (int j = 0; j < COLUMNS; j++) {
        char label[32];
        snprintf(label, sizeof label, ">%s</text>", column_labels[j]);
        assert_int_equal(occurrences(svg, label), HEADS);
    }
    /* A long one is cut, and whole in the tooltip. */
    assert_int_equal(occurrences(svg, "<title>donaudampfschifffahrtsgesellschaft</title>donaudampf"), HEADS);
    assert_int_equal(occurrences(svg, "…</text>"), HEADS);
    /* The three NaN and the legend; the striped rows and the legend. */
    char nan[32];
    snprintf(nan, sizeof nan, "fill=\"#%06x\"", COLOUR_NAN);
    assert_int_equal(occurrences(svg, nan), HEADS + 1);
    assert_int_equal(occurrences(svg, "fill=\"url(#stripes)\""), HEADS + 1);
    free(svg);
}

/* From some number of cells on they are an image, with the same colours as the PNG has. */
static void test_svg_of_many_cells_is_an_image(void **state) {
    (void)state;
    enum { SIDE = 80 };
    float *const values = calloc(SIDE * SIDE, sizeof *values);
    unsigned char *const hidden = calloc(SIDE * SIDE, 1);
    const char *labels[SIDE];
    char message[DRAW_MESSAGE_BYTES];
    draw_result result;
    for (int i = 0; i < SIDE; i++) labels[i] = "t";
    for (int i = 0; i < SIDE * SIDE; i++) values[i] = (float)i;
    const draw_picture picture = {1,    SIDE, SIDE, values, hidden, titles, labels, labels,
                                  NULL, "w",  "h",  true,   true,   0,      0};
    assert_true(attune_draw_2(&picture, DRAW_SVG, &result, message));
    const char *const image = strstr((char *)result.data, "xlink:href=\"data:image/png;base64,iVBORw0KGgo");
    assert_non_null(image);
    assert_true(strcspn(image + 34, "\"") % 4 == 0);
    assert_int_equal(occurrences((char *)result.data, "<image "), 1);
    free(result.data);
    free(values);
    free(hidden);
}

static void test_legend_explains_what_there_is(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    draw_result result = draw_sample(&s, DRAW_SVG);
    assert_int_equal(occurrences((char *)result.data, ">hidden key</text>"), 1);
    assert_int_equal(occurrences((char *)result.data, ">query sees no key</text>"), 1);
    assert_int_equal(occurrences((char *)result.data, ">NaN</text>"), 1);
    free(result.data);
    memset(s.hidden, 0, sizeof s.hidden);
    for (int h = 0; h < HEADS; h++) s.values[h][ROWS - 1][COLUMNS - 1] = 0;
    result = draw_sample(&s, DRAW_SVG);
    assert_int_equal(occurrences((char *)result.data, ">hidden key</text>"), 0);
    assert_int_equal(occurrences((char *)result.data, ">query sees no key</text>"), 0);
    assert_int_equal(occurrences((char *)result.data, ">NaN</text>"), 0);
    free(result.data);
}

static draw_result draw_square(int side, int width, const float *values, const unsigned char *hidden, bool is_sqrt) {
    char message[DRAW_MESSAGE_BYTES];
    draw_result result;
    const char **const labels = calloc((size_t)side, sizeof *labels);
    for (int i = 0; i < side; i++) labels[i] = "token";
    const draw_picture picture = {1,
                                  (size_t)side,
                                  (size_t)side,
                                  values,
                                  hidden,
                                  titles,
                                  labels,
                                  labels,
                                  "A long title of a picture",
                                  "attention weight",
                                  "hidden, or exactly 0",
                                  true,
                                  is_sqrt,
                                  0,
                                  width};
    assert_true(attune_draw_2(&picture, DRAW_SVG, &result, message));
    free(labels);
    return result;
}

/* The strongest of the weights that share a pixel is seen, and so is NaN; the legend says that they share it. */
static void test_shared_pixels_lose_nothing(void **state) {
    (void)state;
    enum { SIDE = 4096 };
    float *const values = calloc((size_t)SIDE * SIDE, sizeof *values);
    unsigned char *const hidden = calloc((size_t)SIDE * SIDE, 1);
    pooled_head pooled;
    const draw_picture picture = {.heads = 1, .rows = SIDE, .columns = SIDE, .values = values, .hidden = hidden};
    const layout l = {.rows = SIDE / 2, .columns = SIDE / 2, .row_share = 2, .column_share = 2};
    values[5] = 0.5f, values[SIDE + 4] = 0.25f, hidden[4] = 1;
    hidden[8] = hidden[9] = hidden[SIDE + 8] = hidden[SIDE + 9] = 1;
    values[SIDE + 11] = NAN, values[10] = 1;
    values[12] = 3, hidden[12] = 1;
    assert_true(pool_create(&pooled, &l));
    pool_fill(&pooled, &picture, &l, 0);
    assert_true(pooled.values[2] == 0.5f && !pooled.hidden[2]);
    assert_true(pooled.hidden[4] && isnan(pooled.values[5]));
    assert_true(pooled.values[6] == 0 && !pooled.hidden[6]);
    pool_free(&pooled);
    const draw_result result = draw_square(SIDE, 0, values, hidden, true);
    assert_true(result.width <= DRAW_USUAL_WIDTH);
    assert_int_equal(
        occurrences((char *)result.data, ">each pixel shows the largest of 2 x 2 attention weights</text>"), 1);
    free(result.data);
    free(values);
    free(hidden);
}

/* From the least width on, whatever there is to explain. */
static void test_every_width_is_kept(void **state) {
    (void)state;
    enum { MOST = 700 };
    float *const values = calloc((size_t)MOST * MOST, sizeof *values);
    unsigned char *const hidden = calloc((size_t)MOST * MOST, 1);
    static const int sides[] = {1, 4, 8, 20, 300, MOST};
    values[0] = NAN;
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        for (int width = DRAW_LEAST_WIDTH; width <= 700; width += 50) {
            hidden[1] = 1;
            const draw_result result = draw_square(sides[i], width, values, hidden, true);
            assert_true(result.width <= width);
            free(result.data);
        }
    free(values);
    free(hidden);
}

/* A long number at the beginning of the scale begins well within the picture. */
static void test_first_number_is_inside(void **state) {
    (void)state;
    char message[DRAW_MESSAGE_BYTES];
    draw_result result;
    const float values[] = {-5.12f, 4};
    const unsigned char hidden[] = {0, 0};
    const draw_picture picture = {1,    1,   2,   values, hidden, titles, row_labels, column_labels,
                                  NULL, "w", "h", false,  false,  20,     0};
    assert_true(attune_draw_2(&picture, DRAW_SVG, &result, message));
    char *const end = strstr((char *)result.data, ">-5.12</text>");
    assert_non_null(end);
    *end = 0;
    const char *text = NULL;
    for (const char *at = (char *)result.data; (at = strstr(at, "<text x=\"")); at++) text = at;
    assert_non_null(text);
    const double size = atof(strstr(text, "font-size=\"") + 11);
    assert_true(atof(text + 9) - 0.5 * size * canvas_measure("-5.12", false) >= 0.5 * size);
    free(result.data);
}

static void test_too_large_is_refused(void **state) {
    (void)state;
    enum { LONG = 33000 };
    float *const values = calloc(LONG, sizeof *values);
    unsigned char *const hidden = calloc(LONG, 1);
    const char **const labels = calloc(LONG, sizeof *labels);
    char message[DRAW_MESSAGE_BYTES] = "";
    draw_result result;
    for (int i = 0; i < LONG; i++) labels[i] = "";
    const draw_picture picture = {1,    1,   LONG, values, hidden, titles, row_labels, labels,
                                  NULL, "w", "h",  true,   true,   1,      0};
    assert_false(attune_draw_2(&picture, DRAW_PNG, &result, message));
    assert_non_null(strstr(message, "1 head of 1 x 33000 cells of 1 pixel"));
    assert_null(result.data);
    free(values);
    free(hidden);
    free(labels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_colour_map_is_even),
        cmocka_unit_test(test_other_colours_are_not_in_the_map),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_layout_of_a_width),
        cmocka_unit_test(test_layout_shares_pixels),
        cmocka_unit_test(test_layout_of_few_rows),
        cmocka_unit_test(test_layout_has_limits),
        cmocka_unit_test(test_png_has_the_values),
        cmocka_unit_test(test_svg_has_text_and_groups),
        cmocka_unit_test(test_svg_of_many_cells_is_an_image),
        cmocka_unit_test(test_legend_explains_what_there_is),
        cmocka_unit_test(test_shared_pixels_lose_nothing),
        cmocka_unit_test(test_every_width_is_kept),
        cmocka_unit_test(test_first_number_is_inside),
        cmocka_unit_test(test_too_large_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
