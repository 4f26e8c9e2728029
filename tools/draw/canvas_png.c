/* PNG by cairo. */
#include "canvas.h"

#include <cairo.h>
#include <math.h>
#include <stdlib.h>

struct canvas {
    cairo_surface_t *surface;
    cairo_t *cairo;
    FILE *file;
};

/* Sizes in `measure` are of this font, large enough that rounding does not show. */
enum { MEASURED_SIZE = 100 };

static void choose_font(cairo_t *cairo, bool is_bold, int size) {
    cairo_select_font_face(cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           is_bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cairo, size);
}

/* Widths that do not depend on the place and direction, and one kind of picture on every machine. */
static void set_font_options(cairo_t *cairo) {
    cairo_font_options_t *const options = cairo_font_options_create();
    cairo_font_options_set_antialias(options, CAIRO_ANTIALIAS_GRAY);
    cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
    cairo_set_font_options(cairo, options);
    cairo_font_options_destroy(options);
}

static void set_colour(cairo_t *cairo, colour c) {
    cairo_set_source_rgb(cairo, (c >> 16 & 0xff) / 255.0, (c >> 8 & 0xff) / 255.0, (c & 0xff) / 255.0);
}

static cairo_status_t put(void *file, const unsigned char *data, unsigned int bytes) {
    return fwrite(data, 1, bytes, file) == bytes ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

double canvas_measure(const char *text, bool is_bold) {
    cairo_surface_t *const surface = cairo_image_surface_create(CAIRO_FORMAT_A8, 1, 1);
    cairo_t *const cairo = cairo_create(surface);
    cairo_text_extents_t extents = {0};
    set_font_options(cairo);
    choose_font(cairo, is_bold, MEASURED_SIZE);
    cairo_text_extents(cairo, text, &extents);
    const bool is_good = cairo_status(cairo) == CAIRO_STATUS_SUCCESS;
    cairo_destroy(cairo);
    cairo_surface_destroy(surface);
    return is_good ? extents.x_advance / MEASURED_SIZE : -1;
}

/* Squares of `cell` pixels straight into the memory of an image: nothing rounds or smooths them. */
static void fill_cells(cairo_surface_t *surface, int x, int y, const canvas_cells *m) {
    unsigned char *const data = cairo_image_surface_get_data(surface);
    const size_t stride = (size_t)cairo_image_surface_get_stride(surface);
    if (!data) return;
    cairo_surface_flush(surface);
    for (int row = 0; row < m->rows * m->height; row++) {
        uint32_t *to = (uint32_t *)(data + (size_t)(y + row) * stride) + x;
        const colour *const from = m->colours + (size_t)(row / m->height) * (size_t)m->columns;
        for (int column = 0; column < m->columns; column++)
            for (int i = 0; i < m->width; i++) *to++ = from[column];
    }
    cairo_surface_mark_dirty(surface);
}

bool canvas_encode_cells(const canvas_cells *m, FILE *file) {
    cairo_surface_t *const surface =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, m->columns * m->width, m->rows * m->height);
    fill_cells(surface, 0, 0, m);
    const bool is_good = cairo_surface_write_to_png_stream(surface, put, file) == CAIRO_STATUS_SUCCESS;
    cairo_surface_destroy(surface);
    return is_good;
}

/* ---- The canvas ---- */

static canvas *create(int width, int height, int zoom, const char *title, FILE *file) {
    (void)title;
    canvas *const c = malloc(sizeof *c);
    if (!c) return NULL;
    cairo_surface_t *const surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width * zoom, height * zoom);
    *c = (canvas){surface, cairo_create(surface), file};
    cairo_scale(c->cairo, zoom, zoom);
    set_font_options(c->cairo);
    return c;
}

static void begin_group(canvas *c, const char *name, const char *title) {
    (void)c;
    (void)name;
    (void)title;
}

static void end_group(canvas *c) { (void)c; }

static void rectangle(canvas *c, int x, int y, int width, int height, colour fill) {
    set_colour(c->cairo, fill);
    cairo_rectangle(c->cairo, x, y, width, height);
    cairo_fill(c->cairo);
}

static void line(canvas *c, double x0, double y0, double x1, double y1, colour stroke) {
    set_colour(c->cairo, stroke);
    cairo_set_line_width(c->cairo, 2);
    cairo_set_line_cap(c->cairo, CAIRO_LINE_CAP_ROUND);
    cairo_move_to(c->cairo, x0, y0);
    cairo_line_to(c->cairo, x1, y1);
    cairo_stroke(c->cairo);
}

static void polygon(canvas *c, const double *corners, int count, colour fill) {
    set_colour(c->cairo, fill);
    for (int i = 0; i < count; i++) cairo_line_to(c->cairo, corners[2 * i], corners[2 * i + 1]);
    cairo_close_path(c->cairo);
    cairo_fill(c->cairo);
}

static void stripes(canvas *c, int x, int y, int width, int height) {
    cairo_t *const cairo = c->cairo;
    const int period = 2 * CANVAS_STRIPE;
    cairo_save(cairo);
    cairo_rectangle(cairo, x, y, width, height);
    cairo_clip(cairo);
    set_colour(cairo, COLOUR_STRIPE);
    /* Lines at 45 degrees, whose distance along an edge is the period: in phase over the whole picture. */
    cairo_set_line_width(cairo, CANVAS_STRIPE / sqrt(2));
    for (int start = (x + y) / period * period; start <= x + width + y + height; start += period) {
        cairo_move_to(cairo, start - y + 1, y - 1);
        cairo_line_to(cairo, start - (y + height) - 1, y + height + 1);
    }
    cairo_stroke(cairo);
    cairo_restore(cairo);
}

static void cells(canvas *c, int x, int y, const canvas_cells *m) { fill_cells(c->surface, x, y, m); }

static void text(canvas *c, const canvas_text *t) {
    cairo_t *const cairo = c->cairo;
    cairo_text_extents_t extents;
    cairo_save(cairo);
    choose_font(cairo, t->is_bold, t->size);
    cairo_text_extents(cairo, t->text, &extents);
    cairo_translate(cairo, t->x, t->y);
    if (t->is_turned) cairo_rotate(cairo, -M_PI / 2);
    const double before = t->anchor == ANCHOR_START ? 0 : t->anchor == ANCHOR_END ? 1 : 0.5;
    cairo_move_to(cairo, -before * extents.x_advance, 0);
    set_colour(cairo, t->colour);
    cairo_show_text(cairo, t->text);
    cairo_restore(cairo);
}

static bool finish(canvas *c) {
    const bool is_good = cairo_status(c->cairo) == CAIRO_STATUS_SUCCESS &&
                         cairo_surface_write_to_png_stream(c->surface, put, c->file) == CAIRO_STATUS_SUCCESS;
    cairo_destroy(c->cairo);
    cairo_surface_destroy(c->surface);
    free(c);
    return is_good;
}

const canvas_type canvas_png = {create, begin_group, end_group, rectangle, line, polygon, stripes, cells, text, finish};
