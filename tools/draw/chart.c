#include "chart.h"

#include "canvas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INK = 0x1c2126, FAINT_INK = 0x5b636b, PAPER = 0xffffff, RULE = 0xe1e4e8 };
enum {
    ZOOM = 2, /* for print */
    PLOT_TOP = 84,
    PLOT_LEFT = 84,
    PLOT_WIDTH = 640,
    PLOT_HEIGHT = 400,
    INSET = 40, /* between the y axis and the first point, and after the last one */
    TEXT = 14,
    SUBTITLE = 13,
    TITLE = 18,
    LINE_STEP = 22,
    MOST_TICKS = 64
};

typedef struct drawing {
    const chart *chart;
    const canvas_type *type;
    canvas *canvas;
    int height;
    double x_low, x_high; /* as placed: logarithms with a logarithmic scale */
    double ticks[MOST_TICKS];
    int num_ticks;
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

static double x_at(const drawing *d, double x) {
    const double share = (placed(d->chart, x) - d->x_low) / (d->x_high - d->x_low);
    return PLOT_LEFT + INSET + share * (PLOT_WIDTH - 2 * INSET);
}

static double y_at(const drawing *d, double y) {
    return PLOT_TOP + PLOT_HEIGHT - fmin(fmax(y / d->chart->y_high, 0), 1) * PLOT_HEIGHT;
}

/* 1, 2 or 5 times a power of ten, so that about `count` steps make `range`. */
static double round_step(double range, int count) {
    const double raw = range / count, power = pow(10, floor(log10(raw))), rest = raw / power;
    return power * (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10);
}

/* ---- Ticks of the x axis ---- */

static const char *name_of(const chart *c, double x, char number[32]) {
    if (c->x_names) return c->x_names[lrint(x)];
    snprintf(number, 32, "%.10g", x);
    return number;
}

/* Whether the texts at the ticks keep apart. */
static bool is_readable(const drawing *d) {
    double end = 0;
    for (int i = 0; i < d->num_ticks; i++) {
        char number[32];
        const double half = 0.5 * TEXT * canvas_measure(name_of(d->chart, d->ticks[i], number), false);
        if (i && x_at(d, d->ticks[i]) - half < end + TEXT) return false;
        end = x_at(d, d->ticks[i]) + half;
    }
    return true;
}

static int ascending(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Where the points are. */
static bool use_points(drawing *d) {
    d->num_ticks = 0;
    for (size_t l = 0; l < d->chart->num_lines; l++)
        for (size_t i = 0; i < d->chart->lines[l].count; i++) {
            const double x = d->chart->lines[l].x[i];
            int at = 0;
            while (at < d->num_ticks && d->ticks[at] != x) at++;
            if (at == MOST_TICKS) return false;
            d->ticks[at] = x;
            if (at == d->num_ticks) d->num_ticks++;
        }
    qsort(d->ticks, (size_t)d->num_ticks, sizeof *d->ticks, ascending);
    return is_readable(d);
}

/* Every so many powers of two, or round numbers. */
static void use_scale(drawing *d, int step) {
    const chart *const c = d->chart;
    const double linear = round_step(d->x_high - d->x_low, 8) * step, by = c->x_is_log ? step : linear;
    d->num_ticks = 0;
    for (double at = ceil(d->x_low / by - 1e-9) * by; at <= d->x_high + 1e-9 * by && d->num_ticks < MOST_TICKS;
         at += by)
        d->ticks[d->num_ticks++] = c->x_is_log ? exp2(at) : at + 0.0; /* no -0 */
}

/* Every so many names, from the first on. */
static void use_names(drawing *d, int step) {
    d->num_ticks = 0;
    for (double at = 0; at <= d->x_high && d->num_ticks < MOST_TICKS; at += step) d->ticks[d->num_ticks++] = at;
}

static void find_ticks(drawing *d) {
    if (use_points(d)) return;
    for (int step = 1; step == 1 || d->num_ticks > 1; step++) {
        if (d->chart->x_names)
            use_names(d, step);
        else
            use_scale(d, step);
        if (is_readable(d)) return;
    }
}

/* ---- Parts ---- */

static void put(drawing *d, const char *text, double x, double y, canvas_anchor anchor, colour ink) {
    d->type->text(
        d->canvas,
        &(canvas_text){
            .text = text, .x = (int)lrint(x), .y = (int)lrint(y), .size = TEXT, .anchor = anchor, .colour = ink});
}

static void draw_titles(drawing *d) {
    const chart *c = d->chart;
    const int middle = PLOT_TOP + PLOT_HEIGHT / 2;
    d->type->text(
        d->canvas,
        &(canvas_text){.text = c->title, .x = PLOT_LEFT, .y = 34, .size = TITLE, .is_bold = true, .colour = INK});
    if (c->subtitle)
        d->type->text(
            d->canvas,
            &(canvas_text){
                .text = c->subtitle, .x = PLOT_LEFT, .y = 34 + LINE_STEP, .size = SUBTITLE, .colour = FAINT_INK});
    d->type->text(d->canvas, &(canvas_text){.text = c->y_title,
                                            .x = 24,
                                            .y = middle,
                                            .size = TEXT,
                                            .anchor = ANCHOR_MIDDLE,
                                            .is_turned = true,
                                            .colour = INK});
    put(d, c->x_title, PLOT_LEFT + PLOT_WIDTH / 2, PLOT_TOP + PLOT_HEIGHT + 2 * LINE_STEP + 8, ANCHOR_MIDDLE, INK);
}

static void draw_y_axis(drawing *d) {
    const chart *c = d->chart;
    const double step = round_step(c->y_high, 6);
    for (double y = 0; y <= c->y_high * 1.0001; y += step) {
        char number[32];
        snprintf(number, sizeof number, c->y_is_share ? "%.10g %%" : "%.10g", c->y_is_share ? 100 * y : y);
        d->type->rectangle(d->canvas, PLOT_LEFT, (int)lrint(y_at(d, y)), PLOT_WIDTH, 1, RULE);
        put(d, number, PLOT_LEFT - 10, y_at(d, y) + TEXT / 3, ANCHOR_END, FAINT_INK);
    }
}

static void draw_x_axis(drawing *d) {
    const int bottom = PLOT_TOP + PLOT_HEIGHT;
    for (int i = 0; i < d->num_ticks; i++) {
        char number[32];
        const double x = x_at(d, d->ticks[i]);
        d->type->rectangle(d->canvas, (int)lrint(x), PLOT_TOP, 1, PLOT_HEIGHT + 6, RULE);
        put(d, name_of(d->chart, d->ticks[i], number), x, bottom + LINE_STEP, ANCHOR_MIDDLE, FAINT_INK);
    }
    d->type->rectangle(d->canvas, PLOT_LEFT, bottom, PLOT_WIDTH, 1, FAINT_INK);
}

static colour line_colour(const chart *c, size_t line) {
    return colour_map(c->num_lines > 1 ? 0.86 * (double)line / (double)(c->num_lines - 1) : 0.3);
}

/* A disc, a square, a triangle, a diamond or one that stands on its tip: to be told apart without colours, too. Around
 * it some paper, which keeps those apart that overlap. */
static void draw_mark(drawing *d, size_t line, double x, double y, colour ink) {
    static const struct {
        int corners;
        double radius, turn; /* of the first corner, as a share of a whole one, from the right downwards */
    } shapes[] = {{24, 4.5, 0}, {4, 5.6, 0.125}, {3, 6, 0.75}, {4, 5.8, 0}, {3, 6, 0.25}};
    const size_t shape = line % (sizeof shapes / sizeof *shapes);
    double corners[2 * 24];
    for (int outer = 1; outer >= 0; outer--) {
        const double radius = shapes[shape].radius + 1.8 * outer;
        for (int i = 0; i < shapes[shape].corners; i++) {
            const double angle = 2 * M_PI * ((double)i / shapes[shape].corners + shapes[shape].turn);
            corners[2 * i] = x + radius * cos(angle);
            corners[2 * i + 1] = y + radius * sin(angle);
        }
        d->type->polygon(d->canvas, corners, shapes[shape].corners, outer ? PAPER : ink);
    }
}

/* With names on the x axis, the marks of several lines lie beside each other. */
static double dodge(const drawing *d, size_t line) {
    if (!d->chart->x_names) return 0;
    const double room = PLOT_WIDTH / (d->x_high - d->x_low + 1),
                 step = fmin(14, room / (double)(d->chart->num_lines + 1));
    return ((double)line - 0.5 * (double)(d->chart->num_lines - 1)) * step;
}

static void draw_line(drawing *d, size_t number) {
    const chart_line *line = &d->chart->lines[number];
    const colour ink = line_colour(d->chart, number);
    d->type->begin_group(d->canvas, "line", line->label);
    for (size_t i = 0; i + 1 < line->count && !d->chart->x_names; i++)
        d->type->line(d->canvas, x_at(d, line->x[i]), y_at(d, line->y[i]), x_at(d, line->x[i + 1]),
                      y_at(d, line->y[i + 1]), ink);
    for (size_t i = 0; i < line->count; i++)
        draw_mark(d, number, x_at(d, line->x[i]) + dodge(d, number), y_at(d, line->y[i]), ink);
    d->type->end_group(d->canvas);
}

static void draw_legend(drawing *d) {
    const int x = PLOT_LEFT + PLOT_WIDTH + 24;
    for (size_t l = 0; l < d->chart->num_lines; l++) {
        const int y = PLOT_TOP + 8 + (int)l * LINE_STEP;
        const colour ink = line_colour(d->chart, l);
        if (!d->chart->x_names) d->type->line(d->canvas, x, y, x + 24, y, ink);
        draw_mark(d, l, x + 12, y, ink);
        put(d, d->chart->lines[l].label, x + 34, y + TEXT / 3 + 1, ANCHOR_START, INK);
    }
}

/* ---- The whole ---- */

/* Width of a text; negative without a font. */
static double width_of(const char *text, int size, bool is_bold) { return size * canvas_measure(text, is_bold); }

static bool plan(drawing *d, int *width) {
    const chart *const c = d->chart;
    double legend = 0;
    if (width_of(c->title, TITLE, true) < 0) return false;
    for (size_t l = 0; l < c->num_lines; l++) legend = fmax(legend, width_of(c->lines[l].label, TEXT, false));
    const double plot_end = PLOT_LEFT + PLOT_WIDTH + (c->num_lines > 1 ? 24 + 34 + legend + 24 : 36);
    const double titles =
        PLOT_LEFT + 24 +
        fmax(width_of(c->title, TITLE, true), c->subtitle ? width_of(c->subtitle, SUBTITLE, false) : 0);
    const int needed = PLOT_TOP + (int)c->num_lines * LINE_STEP + 20,
              usual = PLOT_TOP + PLOT_HEIGHT + 3 * LINE_STEP + 8;
    d->height = needed > usual ? needed : usual;
    *width = (int)ceil(fmax(plot_end, titles));
    find_range(d);
    find_ticks(d);
    return true;
}

static bool draw_all(drawing *d, int width, FILE *file) {
    const chart *c = d->chart;
    d->canvas = d->type->create(width, d->height, ZOOM, c->title, file);
    if (!d->canvas) return false;
    d->type->rectangle(d->canvas, 0, 0, width, d->height, PAPER);
    draw_titles(d);
    draw_y_axis(d);
    draw_x_axis(d);
    for (size_t l = 0; l < c->num_lines; l++) draw_line(d, l);
    if (c->num_lines > 1) draw_legend(d);
    return d->type->finish(d->canvas);
}

bool attune_chart_2(const chart *c, draw_format format, draw_result *result, char message[DRAW_MESSAGE_BYTES]) {
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
    result->width = width * (format == DRAW_PNG ? ZOOM : 1);
    result->height = d.height * (format == DRAW_PNG ? ZOOM : 1);
    if (drawn && closed) return true;
    free(data);
    result->data = NULL;
    snprintf(message, DRAW_MESSAGE_BYTES, "out of memory for a picture of %d x %d pixels", width, d.height);
    return false;
}
