#include "chart.h"

#include "canvas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INK = 0x1c2126, FAINT_INK = 0x5b636b, PAPER = 0xffffff, RULE = 0xe1e4e8 };
enum { WIDTH = 960, PLOT_TOP = 70, PLOT_LEFT = 80, PLOT_HEIGHT = 420, TEXT = 14, TITLE = 18, LINE_STEP = 22, MARK = 7 };

typedef struct drawing {
    const chart *chart;
    const canvas_type *type;
    canvas *canvas;
    int plot_width, height;
    double x_low, x_high; /* as placed: logarithms with a logarithmic scale */
} drawing;

/* ---- Scales ---- */

static double placed(const chart *c, double x) { return c->x_is_log ? log2(x) : x; }

static void find_range(drawing *d) {
    d->x_low = INFINITY;
    d->x_high = -INFINITY;
    for (size_t l = 0; l < d->chart->num_lines; l++)
        for (size_t i = 0; i < d->chart->lines[l].count; i++) {
            const double x = placed(d->chart, d->chart->lines[l].x[i]);
            d->x_low = fmin(d->x_low, x);
            d->x_high = fmax(d->x_high, x);
        }
    if (!(d->x_high > d->x_low)) { /* one place only: in the middle */
        d->x_low -= 1;
        d->x_high += 1;
    }
}

static int x_at(const drawing *d, double x) {
    return PLOT_LEFT + (int)lrint((placed(d->chart, x) - d->x_low) / (d->x_high - d->x_low) * d->plot_width);
}

static int y_at(const drawing *d, double y) {
    return PLOT_TOP + PLOT_HEIGHT - (int)lrint(fmin(fmax(y / d->chart->y_high, 0), 1) * PLOT_HEIGHT);
}

/* 1, 2 or 5 times a power of ten, so that about `count` steps make `range`. */
static double round_step(double range, int count) {
    const double raw = range / count, power = pow(10, floor(log10(raw))), rest = raw / power;
    return power * (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10);
}

/* ---- Parts ---- */

static void put(drawing *d, const char *text, int x, int y, canvas_anchor anchor, colour ink) {
    d->type->text(d->canvas,
                  &(canvas_text){.text = text, .x = x, .y = y, .size = TEXT, .anchor = anchor, .colour = ink});
}

static void draw_y_axis(drawing *d) {
    const chart *c = d->chart;
    const double step = round_step(c->y_high, 6);
    for (double y = 0; y <= c->y_high * 1.0001; y += step) {
        char number[32];
        snprintf(number, sizeof number, c->y_is_share ? "%g %%" : "%g", c->y_is_share ? 100 * y : y);
        d->type->rectangle(d->canvas, PLOT_LEFT, y_at(d, y), d->plot_width, 1, RULE);
        put(d, number, PLOT_LEFT - 8, y_at(d, y) + TEXT / 3, ANCHOR_END, FAINT_INK);
    }
    d->type->text(d->canvas, &(canvas_text){.text = c->y_title,
                                            .x = 20,
                                            .y = PLOT_TOP + PLOT_HEIGHT / 2,
                                            .size = TEXT,
                                            .anchor = ANCHOR_MIDDLE,
                                            .is_turned = true,
                                            .colour = INK});
}

static void draw_x_tick(drawing *d, double x) {
    char number[32];
    snprintf(number, sizeof number, "%g", x);
    d->type->rectangle(d->canvas, x_at(d, x), PLOT_TOP + PLOT_HEIGHT, 1, 6, FAINT_INK);
    put(d, number, x_at(d, x), PLOT_TOP + PLOT_HEIGHT + 6 + LINE_STEP - 6, ANCHOR_MIDDLE, FAINT_INK);
}

static void draw_x_axis(drawing *d) {
    const chart *c = d->chart;
    d->type->rectangle(d->canvas, PLOT_LEFT, PLOT_TOP + PLOT_HEIGHT, d->plot_width, 1, FAINT_INK);
    if (c->x_is_log) {
        const int step = (int)ceil((d->x_high - d->x_low) / 10);
        for (int power = (int)ceil(d->x_low - 1e-9); power <= d->x_high + 1e-9; power += step > 0 ? step : 1)
            draw_x_tick(d, exp2(power));
    } else {
        const double step = round_step(d->x_high - d->x_low, 8);
        for (double x = ceil(d->x_low / step - 1e-9) * step; x <= d->x_high * (1 + 1e-9); x += step) draw_x_tick(d, x);
    }
    put(d, c->x_title, PLOT_LEFT + d->plot_width / 2, PLOT_TOP + PLOT_HEIGHT + 2 * LINE_STEP + 4, ANCHOR_MIDDLE, INK);
}

static colour line_colour(const chart *c, size_t line) {
    return colour_map(c->num_lines > 1 ? 0.88 * (double)line / (double)(c->num_lines - 1) : 0.3);
}

static void draw_line(drawing *d, size_t number) {
    const chart_line *line = &d->chart->lines[number];
    const colour ink = line_colour(d->chart, number);
    d->type->begin_group(d->canvas, "line", line->label);
    for (size_t i = 0; i + 1 < line->count; i++)
        d->type->line(d->canvas, x_at(d, line->x[i]), y_at(d, line->y[i]), x_at(d, line->x[i + 1]),
                      y_at(d, line->y[i + 1]), ink);
    for (size_t i = 0; i < line->count; i++)
        d->type->rectangle(d->canvas, x_at(d, line->x[i]) - MARK / 2, y_at(d, line->y[i]) - MARK / 2, MARK, MARK, ink);
    d->type->end_group(d->canvas);
}

static void draw_legend(drawing *d) {
    const int x = PLOT_LEFT + d->plot_width + 20;
    for (size_t l = 0; l < d->chart->num_lines; l++) {
        const int y = PLOT_TOP + (int)l * LINE_STEP;
        d->type->rectangle(d->canvas, x, y, 18, 4, line_colour(d->chart, l));
        put(d, d->chart->lines[l].label, x + 26, y + TEXT / 2, ANCHOR_START, INK);
    }
}

/* ---- The whole ---- */

static bool plan(drawing *d, int *width) {
    double ems = 0;
    for (size_t l = 0; l < d->chart->num_lines; l++) {
        const double own = canvas_measure(d->chart->lines[l].label, false);
        if (own < 0) return false;
        ems = fmax(ems, own);
    }
    const int legend = d->chart->num_lines > 1 ? (int)ceil(ems * TEXT) + 60 : 30;
    const int needed = PLOT_TOP + (int)d->chart->num_lines * LINE_STEP + 20,
              usual = PLOT_TOP + PLOT_HEIGHT + 3 * LINE_STEP;
    d->plot_width = WIDTH - PLOT_LEFT - 180;
    d->height = needed > usual ? needed : usual;
    *width = PLOT_LEFT + d->plot_width + legend;
    find_range(d);
    return true;
}

static bool draw_all(drawing *d, int width, FILE *file) {
    const chart *c = d->chart;
    d->canvas = d->type->create(width, d->height, c->title, file);
    if (!d->canvas) return false;
    d->type->rectangle(d->canvas, 0, 0, width, d->height, PAPER);
    d->type->text(d->canvas, &(canvas_text){.text = c->title,
                                            .x = PLOT_LEFT,
                                            .y = 36,
                                            .size = TITLE,
                                            .anchor = ANCHOR_START,
                                            .is_bold = true,
                                            .colour = INK});
    draw_y_axis(d);
    draw_x_axis(d);
    for (size_t l = 0; l < c->num_lines; l++) draw_line(d, l);
    if (c->num_lines > 1) draw_legend(d);
    return d->type->finish(d->canvas);
}

bool attune_chart_1(const chart *c, draw_format format, draw_result *result, char message[DRAW_MESSAGE_BYTES]) {
    drawing d = {.chart = c, .type = format == DRAW_PNG ? &canvas_png : &canvas_svg};
    int width = 0;
    char *data = NULL;
    *result = (draw_result){.data = NULL};
    if (!plan(&d, &width)) {
        snprintf(message, DRAW_MESSAGE_BYTES, "no font can be found to write with");
        return false;
    }
    FILE *const file = open_memstream(&data, &result->bytes);
    const bool drawn = file && draw_all(&d, width, file);
    const bool closed = file && fclose(file) == 0;
    result->data = (unsigned char *)data;
    result->width = width;
    result->height = d.height;
    if (drawn && closed) return true;
    free(data);
    result->data = NULL;
    snprintf(message, DRAW_MESSAGE_BYTES, "out of memory for a picture of %d x %d pixels", width, d.height);
    return false;
}
