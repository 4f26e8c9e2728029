/* The picture itself, drawn on either kind of canvas. */
#include "draw.h"

#include "canvas.h"
#include "layout.h"
#include "legend.h"
#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INK = 0x1c2126, FAINT_INK = 0x5b636b, PAPER = 0xffffff, FRAME = 0x9aa1a8 };

/* A cell of so many pixels shows its number. */
enum { NUMBERED_CELL = 36 };

typedef struct drawing {
    const draw_picture *picture;
    const canvas_type *type;
    canvas *canvas;
    colour_scale scale;
    layout layout;
    legend legend;
    double label_ems; /* labels are cut to this */
    pooled_head head; /* the one that is drawn */
    colour *colours;  /* of its cells */
} drawing;

/* ---- Text ---- */

static bool fits(const char *text, bool is_bold, double ems) { return canvas_measure(text, is_bold) <= ems; }

/* Bytes of the longest start of `text` that ends with a character and, with the sign of omission, is not too wide. */
static size_t fitting_bytes(const char *text, bool is_bold, double ems, char *buffer) {
    size_t good = 0;
    for (size_t end = 1; text[end]; end++) {
        if (((unsigned char)text[end] & 0xc0) == 0x80) continue;
        memcpy(buffer, text, end);
        strcpy(buffer + end, "…");
        if (!fits(buffer, is_bold, ems)) break;
        good = end;
    }
    return good;
}

/* Draws a line, shortened to `ems` if that is not 0. */
static void put_text(drawing *d, canvas_text text, double ems) {
    char *const buffer = ems > 0 && !fits(text.text, text.is_bold, ems) ? malloc(strlen(text.text) + 4) : NULL;
    if (buffer) {
        const size_t bytes = fitting_bytes(text.text, text.is_bold, ems, buffer);
        strcpy(buffer + bytes, "…");
        text.full = text.text;
        text.text = buffer;
    }
    d->type->text(d->canvas, &text);
    free(buffer);
}

/* The widest of some labels in ems, no wider than they are drawn. */
static double widest(const char *const *labels, size_t count, double label_ems) {
    double most = 0;
    for (size_t i = 0; i < count && most < label_ems; i++) most = fmax(most, canvas_measure(labels[i], false));
    return fmin(most, label_ems);
}

/* Half the height of capitals and digits: from the middle of a line down to its baseline. */
static int half_height(int size) { return (int)lround(0.36 * size); }

/* ---- The legend ---- */

static const char *format_number(double value, char buffer[32]) {
    snprintf(buffer, 32, "%.3g", value);
    return buffer;
}

/* About as much, as 1, 2, 3 or 5 times a power of ten. */
static double round_number(double value) {
    const double power = pow(10, floor(log10(value))), ratio = value / power;
    return power * (ratio < 1.5 ? 1 : ratio < 2.6 ? 2 : ratio < 4 ? 3 : ratio < 7.5 ? 5 : 10);
}

/* Tick number `i` from 0 on of a colour scale: at equal steps of the value, or near three places where the colours have
 * equal steps. Beyond the scale where there is none. */
static double middle_tick(const colour_scale *s, int i) {
    const double range = s->high - s->low, place = (i + 1) / 4.0;
    if (s->is_sqrt) return i < 3 ? s->low + round_number(range * place * place) : INFINITY;
    const double step = round_number(range / 4), value = (ceil(s->low / step) + i) * step;
    return fabs(value) < step / 2 ? 0 : value;
}

/* The part of the header's font that numbers below the scale have. */
static const double tick_size = 0.85;

/* Of the header's font: how much room a number needs. */
static double tick_ems(double value) {
    char number[32];
    return tick_size * (canvas_measure(format_number(value, number), false) + 0.8);
}

/* The middle of a number at the beginning of the scale, at which long ones would leave the picture. */
static double first_middle(double value) { return fmax(0, 0.5 * tick_ems(value) - 0.8); }

static void draw_tick(drawing *d, int x, int y, int to_right, double value) {
    char number[32];
    const int size = d->layout.header_size;
    d->type->rectangle(d->canvas, x, y, 1, size / 3, FRAME);
    put_text(d,
             (canvas_text){.text = format_number(value, number),
                           .x = x + to_right,
                           .y = y + size / 3 + size,
                           .size = (int)lround(tick_size * size),
                           .anchor = ANCHOR_MIDDLE,
                           .colour = INK},
             0);
}

/* The bar is as high as a swatch; numbers stand below it. */
static void draw_scale(drawing *d, layout_point at) {
    const int size = d->layout.header_size, width = (int)lround(d->legend.bar_ems * size);
    const int top = at.y - half_height(size) - (int)lround(0.55 * size), height = (int)lround(1.1 * size);
    const colour_scale *const s = &d->scale;
    for (int x = 0; x < width; x++)
        d->type->rectangle(d->canvas, at.x + x, top, 1, height, colour_map((double)x / (width - 1)));
    draw_tick(d, at.x, top + height, (int)lround(first_middle(s->low) * size), s->low);
    draw_tick(d, at.x + width - 1, top + height, 0, s->high);
    /* Round numbers in between, clear of both ends and of each other. */
    double taken = first_middle(s->low) + 0.5 * tick_ems(s->low);
    for (int i = 0; i <= 10; i++) {
        const double value = middle_tick(s, i), position = colour_position(s, value), half = 0.5 * tick_ems(value);
        const double middle = position * d->legend.bar_ems;
        if (!(position > 0) || middle - half < taken || middle + half > d->legend.bar_ems - 0.5 * tick_ems(s->high))
            continue;
        taken = middle + half;
        draw_tick(d, at.x + (int)lround(position * (width - 1)), top + height, 0, value);
    }
    put_text(d,
             (canvas_text){
                 .text = d->legend.items[0].text, .x = at.x + width + size, .y = at.y, .size = size, .colour = INK},
             0);
}

static void draw_swatch(drawing *d, const legend_item *item, layout_point at) {
    const int size = d->layout.header_size, side = (int)lround(1.1 * size);
    const int top = at.y - half_height(size) - side / 2;
    d->type->rectangle(d->canvas, at.x, top, side, side, FRAME);
    d->type->rectangle(d->canvas, at.x + 1, top + 1, side - 2, side - 2, item->colour);
    if (item->has_stripes) d->type->stripes(d->canvas, at.x + 1, top + 1, side - 2, side - 2);
}

static void draw_header(drawing *d) {
    const layout *const l = &d->layout;
    if (d->picture->title)
        put_text(d,
                 (canvas_text){.text = d->picture->title,
                               .x = l->margin,
                               .y = l->title_y,
                               .size = l->title_size,
                               .is_bold = true,
                               .colour = INK},
                 (double)(l->width - 2 * l->margin) / l->title_size);
    d->type->begin_group(d->canvas, "legend", d->picture->scale_title);
    draw_scale(d, l->legend[0]);
    for (size_t i = 1; i < d->legend.count; i++) {
        const legend_item *const item = &d->legend.items[i];
        layout_point at = l->legend[i];
        if (item->has_swatch) draw_swatch(d, item, at);
        if (item->has_swatch) at.x += (int)lround(legend_swatch_ems * l->header_size);
        put_text(d,
                 (canvas_text){.text = item->text,
                               .x = at.x,
                               .y = at.y,
                               .size = l->header_size,
                               .colour = item->is_faint ? FAINT_INK : INK},
                 0);
    }
    d->type->end_group(d->canvas);
}

/* ---- One head ---- */

static void draw_frame(drawing *d, layout_point at) {
    const int width = d->layout.matrix_width, height = d->layout.matrix_height;
    const canvas_type *const type = d->type;
    type->rectangle(d->canvas, at.x - 1, at.y - 1, width + 2, 1, FRAME);
    type->rectangle(d->canvas, at.x - 1, at.y + height, width + 2, 1, FRAME);
    type->rectangle(d->canvas, at.x - 1, at.y, 1, height, FRAME);
    type->rectangle(d->canvas, at.x + width, at.y, 1, height, FRAME);
}

static void draw_labels(drawing *d, layout_point at) {
    const layout *const l = &d->layout;
    const draw_picture *const p = d->picture;
    canvas_text text = {.size = l->label_size, .anchor = ANCHOR_END, .colour = INK};
    for (size_t row = 0; row < p->rows; row += (size_t)l->row_stride) {
        const int y = at.y + (int)row / l->row_share * l->cell_height + l->cell_height / 2;
        d->type->rectangle(d->canvas, at.x - 1 - LAYOUT_TICK, y, LAYOUT_TICK, 1, FRAME);
        text.text = p->row_labels[row];
        text.x = at.x - LAYOUT_LABEL_GAP;
        text.y = y + half_height(l->label_size);
        put_text(d, text, d->label_ems);
    }
    text.is_turned = l->turns_columns;
    text.anchor = l->turns_columns ? ANCHOR_END : ANCHOR_MIDDLE;
    for (size_t column = 0; column < p->columns; column += (size_t)l->column_stride) {
        const int x = at.x + (int)column / l->column_share * l->cell_width + l->cell_width / 2,
                  bottom = at.y + l->matrix_height;
        d->type->rectangle(d->canvas, x, bottom + 1, 1, LAYOUT_TICK, FRAME);
        text.text = p->column_labels[column];
        text.x = x + (l->turns_columns ? half_height(l->label_size) : 0);
        text.y = bottom + LAYOUT_LABEL_GAP + (l->turns_columns ? 0 : 2 * half_height(l->label_size));
        put_text(d, text, d->label_ems);
    }
}

/* Rows next to each other share a rectangle, so that their stripes do. */
static void draw_empty_rows(drawing *d, layout_point at) {
    const pooled_head *const h = &d->head;
    const int height = d->layout.cell_height;
    for (size_t row = 0; row < h->rows; row++) {
        size_t end = row;
        while (end < h->rows && legend_row_is_hidden(h->values, h->hidden, h->columns, end)) end++;
        if (end == row) continue;
        d->type->stripes(d->canvas, at.x, at.y + (int)row * height, d->layout.matrix_width, (int)(end - row) * height);
        row = end;
    }
}

static void draw_numbers(drawing *d, layout_point at) {
    const pooled_head *const h = &d->head;
    const int cell = d->layout.cell_width, size = cell * 3 / 10;
    char number[32];
    for (size_t i = 0; i < h->rows * h->columns; i++) {
        if (h->hidden[i] || !isfinite(h->values[i])) continue;
        snprintf(number, sizeof number, "%.2f", (double)h->values[i]);
        put_text(d,
                 (canvas_text){.text = number,
                               .x = at.x + (int)(i % h->columns) * cell + cell / 2,
                               .y = at.y + (int)(i / h->columns) * cell + cell / 2 + half_height(size),
                               .size = size,
                               .anchor = ANCHOR_MIDDLE,
                               .colour = colour_is_dark(d->colours[i]) ? 0xffffff : 0x000000},
                 0);
    }
}

static void draw_head(drawing *d, size_t head) {
    const draw_picture *const p = d->picture;
    const layout *const l = &d->layout;
    const layout_point at = layout_matrix(l, head);
    const pooled_head *const h = &d->head;
    pool_fill(&d->head, p, l, head);
    d->type->begin_group(d->canvas, "head", p->head_titles[head]);
    put_text(d,
             (canvas_text){.text = p->head_titles[head],
                           .x = at.x + l->matrix_width / 2,
                           .y = at.y - (int)lround(0.55 * l->head_title_size),
                           .size = l->head_title_size,
                           .anchor = ANCHOR_MIDDLE,
                           .is_bold = true,
                           .colour = INK},
             0);
    draw_frame(d, at);
    for (size_t i = 0; i < h->rows * h->columns; i++)
        d->colours[i] = colour_of_cell(&d->scale, h->values[i], h->hidden[i]);
    const canvas_cells cells = {l->cell_width, l->cell_height, d->colours, l->rows, l->columns};
    d->type->cells(d->canvas, at.x, at.y, &cells);
    draw_empty_rows(d, at);
    draw_labels(d, at);
    /* Two digits say something of numbers like these only. */
    const double most = fmax(fabs(d->scale.low), fabs(d->scale.high));
    if (l->cell_width >= NUMBERED_CELL && most >= 0.05 && most < 100) draw_numbers(d, at);
    d->type->end_group(d->canvas);
}

/* ---- The whole ---- */

/* Why there is no picture; false. */
static bool explain_size(const draw_picture *p, char message[DRAW_MESSAGE_BYTES]) {
    const char *const plural = p->heads == 1 ? "" : "s";
    if (p->cell)
        snprintf(message, DRAW_MESSAGE_BYTES,
                 "%zu head%s of %zu x %zu cells of %d pixel%s would make a picture beyond %d pixels a side or 1 GB of "
                 "memory",
                 p->heads, plural, p->rows, p->columns, p->cell, p->cell == 1 ? "" : "s", LAYOUT_MAX_SIDE);
    else
        snprintf(
            message, DRAW_MESSAGE_BYTES,
            "%zu head%s of %zu x %zu cells in a width of %d pixels would make a picture beyond %d pixels of height "
            "or 1 GB of memory",
            p->heads, plural, p->rows, p->columns, p->width ? p->width : DRAW_USUAL_WIDTH, LAYOUT_MAX_SIDE);
    return false;
}

/* Ems that a line of the header has in the smallest font, as many as it likes where cells set the width. */
static double line_ems(const draw_picture *p) {
    const int width = p->width ? p->width : DRAW_USUAL_WIDTH;
    return p->cell ? INFINITY : (double)(width - 2 * layout_margin(LAYOUT_LEAST_HEADER)) / LAYOUT_LEAST_HEADER;
}

static bool is_laid_out(const layout *a, const layout *b) {
    return a->row_stride == b->row_stride && a->column_stride == b->column_stride && a->row_share == b->row_share &&
           a->column_share == b->column_share && a->cell_width == b->cell_width;
}

/* The legend says how many tokens have labels or share cells, which is known only after a layout; a longer legend may
 * change that once more. */
static bool lay_out(drawing *d, layout_request *request) {
    enum { MOST_ROUNDS = 4 };
    const double most_ems = line_ems(d->picture);
    layout before;
    legend_make(&d->legend, d->picture, NULL, most_ems);
    for (int round = 0; round < MOST_ROUNDS; round++) {
        before = d->layout;
        request->num_legend = d->legend.count;
        for (size_t i = 0; i < d->legend.count; i++) request->legend[i] = legend_ems(&d->legend, i);
        if (!layout_make(request, &d->layout)) return false;
        if (round && is_laid_out(&before, &d->layout)) break;
        legend_make(&d->legend, d->picture, &d->layout, most_ems);
    }
    return true;
}

static bool plan(drawing *d, char message[DRAW_MESSAGE_BYTES]) {
    static const double most_label_ems = 9, label_pixels = 10;
    const draw_picture *const p = d->picture;
    /* In a narrow picture, no more than a quarter of the width. */
    d->label_ems = p->width && !p->cell ? fmin(most_label_ems, p->width / 4.0 / label_pixels) : most_label_ems;
    if (canvas_measure("0", false) <= 0) {
        snprintf(message, DRAW_MESSAGE_BYTES, "cairo finds no font; install one, such as fonts-dejavu-core");
        return false;
    }
    layout_request request = {.heads = p->heads,
                              .rows = p->rows,
                              .columns = p->columns,
                              .row_label = widest(p->row_labels, p->rows, d->label_ems),
                              .column_label = widest(p->column_labels, p->columns, d->label_ems),
                              .title = p->title ? fmin(canvas_measure(p->title, true), line_ems(p) / 1.5) : 0,
                              .cell = p->cell,
                              .width = p->width};
    for (size_t i = 0; i < p->heads; i++)
        request.head_title = fmax(request.head_title, canvas_measure(p->head_titles[i], true));
    return lay_out(d, &request) || explain_size(p, message);
}

static bool draw_all(drawing *d, FILE *file) {
    const layout *const l = &d->layout;
    const char *const title = d->picture->title ? d->picture->title : d->picture->scale_title;
    d->canvas = d->type->create(l->width, l->height, 1, title, file);
    if (!d->canvas) return false;
    d->type->rectangle(d->canvas, 0, 0, l->width, l->height, PAPER);
    draw_header(d);
    for (size_t head = 0; head < d->picture->heads; head++) draw_head(d, head);
    return d->type->finish(d->canvas);
}

bool attune_draw_2(const draw_picture *p, draw_format format, draw_result *result, char message[DRAW_MESSAGE_BYTES]) {
    drawing d = {.picture = p, .type = format == DRAW_PNG ? &canvas_png : &canvas_svg};
    *result = (draw_result){.data = NULL};
    d.scale = colour_scale_of(p->values, p->hidden, p->heads * p->rows * p->columns, p->starts_at_zero, p->is_sqrt);
    if (!plan(&d, message)) return false;
    char *data = NULL;
    const bool has_room = pool_create(&d.head, &d.layout);
    d.colours = malloc((size_t)d.layout.rows * (size_t)d.layout.columns * sizeof *d.colours);
    FILE *const file = open_memstream(&data, &result->bytes);
    const bool drawn = has_room && d.colours && file && draw_all(&d, file);
    const bool closed = file && fclose(file) == 0;
    free(d.colours);
    pool_free(&d.head);
    result->data = (unsigned char *)data;
    result->width = d.layout.width;
    result->height = d.layout.height;
    result->low = d.scale.low;
    result->high = d.scale.high;
    if (drawn && closed) return true;
    free(data);
    result->data = NULL;
    snprintf(message, DRAW_MESSAGE_BYTES, "out of memory for a picture of %d x %d pixels", d.layout.width,
             d.layout.height);
    return false;
}
