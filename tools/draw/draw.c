/* The picture itself, drawn on either kind of canvas. */
#include "draw.h"

#include "canvas.h"
#include "layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INK = 0x1c2126, FAINT_INK = 0x5b636b, PAPER = 0xffffff, FRAME = 0x9aa1a8 };

/* Labels are cut to this many ems. */
static const double label_ems = 9;

/* A cell of so many pixels shows its number. */
enum { NUMBERED_CELL = 36 };

typedef struct legend_item {
    colour colour;
    bool has_stripes, has_swatch;
    const char *text;
    char buffer[64];
} legend_item;

typedef struct drawing {
    const draw_picture *picture;
    const canvas_type *type;
    canvas *canvas;
    colour_scale scale;
    layout layout;
    legend_item legend[LAYOUT_MAX_LEGEND];
    size_t num_legend;
    colour *colours; /* of one head */
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
static double widest(const char *const *labels, size_t count) {
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

/* Ems of the colour bar, and from a swatch to its text. */
static const double bar_ems = 16, swatch_ems = 1.7;

static bool row_is_hidden(const draw_picture *p, size_t row) {
    const unsigned char *const hidden = p->hidden + row * p->columns;
    for (size_t i = 0; i < p->columns; i++)
        if (!hidden[i] || isnan(p->values[row * p->columns + i])) return false;
    return true;
}

static legend_item *add_item(drawing *d, const char *text) {
    legend_item *const item = &d->legend[d->num_legend++];
    *item = (legend_item){.text = text};
    return item;
}

static void add_swatch(drawing *d, const char *text, colour c, bool has_stripes) {
    legend_item *const item = add_item(d, text);
    item->colour = c;
    item->has_stripes = has_stripes;
    item->has_swatch = true;
}

static const char axes[] = "rows: queries, columns: keys";

/* Explains only colours that are in the picture. */
static void make_legend(drawing *d) {
    const draw_picture *const p = d->picture;
    bool has_hidden = false, has_nan = false, has_infinity = false, has_empty = false;
    for (size_t row = 0; row < p->heads * p->rows; row++) {
        const bool is_empty = row_is_hidden(p, row);
        has_empty |= is_empty;
        for (size_t i = row * p->columns; i < (row + 1) * p->columns; i++) {
            has_nan |= isnan(p->values[i]);
            has_infinity |= isinf(p->values[i]) && !p->hidden[i];
            has_hidden |= p->hidden[i] && !is_empty && !isnan(p->values[i]);
        }
    }
    legend_item *const scale = add_item(d, p->scale_title);
    if (p->is_sqrt) {
        snprintf(scale->buffer, sizeof scale->buffer, "%s; colours show the square root", p->scale_title);
        scale->text = scale->buffer;
    }
    if (has_hidden) add_swatch(d, p->hidden_title, COLOUR_HIDDEN, false);
    if (has_empty) add_swatch(d, "query sees no key", COLOUR_HIDDEN, true);
    if (has_nan || has_infinity)
        add_swatch(d, !has_infinity ? "NaN" : has_nan ? "NaN or infinite" : "infinite", COLOUR_NAN, false);
    add_item(d, axes);
}

static double item_ems(const drawing *d, size_t i) {
    const double text = canvas_measure(d->legend[i].text, false);
    return i == 0 ? bar_ems + 1 + text : text + (d->legend[i].has_swatch ? swatch_ems : 0);
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

static void draw_tick(drawing *d, int x, int y, double value) {
    char number[32];
    const int size = d->layout.header_size;
    d->type->rectangle(d->canvas, x, y, 1, size / 3, FRAME);
    put_text(d,
             (canvas_text){.text = format_number(value, number),
                           .x = x,
                           .y = y + size / 3 + size,
                           .size = (int)lround(tick_size * size),
                           .anchor = ANCHOR_MIDDLE,
                           .colour = INK},
             0);
}

/* The bar is as high as a swatch; numbers stand below it. */
static void draw_scale(drawing *d, layout_point at) {
    const int size = d->layout.header_size, width = (int)lround(bar_ems * size);
    const int top = at.y - half_height(size) - (int)lround(0.55 * size), height = (int)lround(1.1 * size);
    const colour_scale *const s = &d->scale;
    for (int x = 0; x < width; x++)
        d->type->rectangle(d->canvas, at.x + x, top, 1, height, colour_map((double)x / (width - 1)));
    draw_tick(d, at.x, top + height, s->low);
    draw_tick(d, at.x + width - 1, top + height, s->high);
    /* Round numbers in between, clear of both ends and of each other. */
    double taken = 0.5 * tick_ems(s->low);
    for (int i = 0; i <= 10; i++) {
        const double value = middle_tick(s, i), position = colour_position(s, value), half = 0.5 * tick_ems(value);
        const double middle = position * bar_ems;
        if (!(position > 0) || middle - half < taken || middle + half > bar_ems - 0.5 * tick_ems(s->high)) continue;
        taken = middle + half;
        draw_tick(d, at.x + (int)lround(position * (width - 1)), top + height, value);
    }
    put_text(d,
             (canvas_text){.text = d->legend[0].text, .x = at.x + width + size, .y = at.y, .size = size, .colour = INK},
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
    d->type->begin_group(d->canvas, "legend", d->legend[0].text);
    draw_scale(d, l->legend[0]);
    for (size_t i = 1; i < d->num_legend; i++) {
        const legend_item *const item = &d->legend[i];
        layout_point at = l->legend[i];
        if (item->has_swatch) draw_swatch(d, item, at);
        if (item->has_swatch) at.x += (int)lround(swatch_ems * l->header_size);
        put_text(d,
                 (canvas_text){.text = item->text,
                               .x = at.x,
                               .y = at.y,
                               .size = l->header_size,
                               .colour = item->has_swatch ? INK : FAINT_INK},
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
    for (size_t row = 0; row < p->rows; row += (size_t)l->stride) {
        const int y = at.y + (int)row * l->cell + l->cell / 2;
        d->type->rectangle(d->canvas, at.x - 1 - LAYOUT_TICK, y, LAYOUT_TICK, 1, FRAME);
        text.text = p->row_labels[row];
        text.x = at.x - LAYOUT_LABEL_GAP;
        text.y = y + half_height(l->label_size);
        put_text(d, text, label_ems);
    }
    text.is_turned = l->turns_columns;
    text.anchor = l->turns_columns ? ANCHOR_END : ANCHOR_MIDDLE;
    for (size_t column = 0; column < p->columns; column += (size_t)l->stride) {
        const int x = at.x + (int)column * l->cell + l->cell / 2, bottom = at.y + l->matrix_height;
        d->type->rectangle(d->canvas, x, bottom + 1, 1, LAYOUT_TICK, FRAME);
        text.text = p->column_labels[column];
        text.x = x + (l->turns_columns ? half_height(l->label_size) : 0);
        text.y = bottom + LAYOUT_LABEL_GAP + (l->turns_columns ? 0 : 2 * half_height(l->label_size));
        put_text(d, text, label_ems);
    }
}

/* Rows next to each other share a rectangle, so that their stripes do. */
static void draw_empty_rows(drawing *d, size_t head, layout_point at) {
    const draw_picture *const p = d->picture;
    const size_t first = head * p->rows;
    for (size_t row = 0; row < p->rows; row++) {
        size_t end = row;
        while (end < p->rows && row_is_hidden(p, first + end)) end++;
        if (end == row) continue;
        d->type->stripes(d->canvas, at.x, at.y + (int)row * d->layout.cell, d->layout.matrix_width,
                         (int)(end - row) * d->layout.cell);
        row = end;
    }
}

static void draw_numbers(drawing *d, size_t head, layout_point at) {
    const draw_picture *const p = d->picture;
    const int cell = d->layout.cell, size = cell * 3 / 10;
    char number[32];
    for (size_t i = 0; i < p->rows * p->columns; i++) {
        const size_t place = head * p->rows * p->columns + i;
        if (p->hidden[place] || !isfinite(p->values[place])) continue;
        snprintf(number, sizeof number, "%.2f", (double)p->values[place]);
        put_text(d,
                 (canvas_text){.text = number,
                               .x = at.x + (int)(i % p->columns) * cell + cell / 2,
                               .y = at.y + (int)(i / p->columns) * cell + cell / 2 + half_height(size),
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
    const size_t count = p->rows * p->columns;
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
    for (size_t i = 0; i < count; i++)
        d->colours[i] = colour_of_cell(&d->scale, p->values[head * count + i], p->hidden[head * count + i]);
    d->type->cells(d->canvas, at.x, at.y, l->cell, d->colours, (int)p->rows, (int)p->columns);
    draw_empty_rows(d, head, at);
    draw_labels(d, at);
    /* Two digits say something of numbers like these only. */
    const double most = fmax(fabs(d->scale.low), fabs(d->scale.high));
    if (l->cell >= NUMBERED_CELL && most >= 0.05 && most < 100) draw_numbers(d, head, at);
    d->type->end_group(d->canvas);
}

/* ---- The whole ---- */

static void note_stride(legend_item *note, int stride) {
    static const char *const ordinals[] = {"second", "third", "fourth", "fifth", "sixth"};
    if (stride < 2) return;
    if (stride <= 6 || stride == 10)
        snprintf(note->buffer, sizeof note->buffer, "%s; every %s token is named", axes,
                 stride == 10 ? "tenth" : ordinals[stride - 2]);
    else
        snprintf(note->buffer, sizeof note->buffer, "%s; one token of %d is named", axes, stride);
    note->text = note->buffer;
}

/* Why there is no picture; false. */
static bool explain_size(const draw_picture *p, char message[DRAW_MESSAGE_BYTES]) {
    const int cell = p->cell ? p->cell : 1;
    if (p->width && !p->cell)
        snprintf(message, DRAW_MESSAGE_BYTES,
                 "%zu head%s of %zu x %zu cells, of one pixel at least, would not fit in a width of %d pixels",
                 p->heads, p->heads == 1 ? "" : "s", p->rows, p->columns, p->width);
    else
        snprintf(message, DRAW_MESSAGE_BYTES,
                 "%zu head%s of %zu x %zu cells of %d pixel%s would make a picture beyond %d pixels a side or 1 GB of "
                 "memory",
                 p->heads, p->heads == 1 ? "" : "s", p->rows, p->columns, cell, cell == 1 ? "" : "s", LAYOUT_MAX_SIDE);
    return false;
}

static bool plan(drawing *d, char message[DRAW_MESSAGE_BYTES]) {
    const draw_picture *const p = d->picture;
    const double row_label = widest(p->row_labels, p->rows), column_label = widest(p->column_labels, p->columns);
    layout_request request = {.heads = p->heads,
                              .rows = p->rows,
                              .columns = p->columns,
                              .row_label = row_label,
                              .column_label = column_label,
                              .title = p->title ? canvas_measure(p->title, true) : 0,
                              .cell = p->cell,
                              .width = p->width};
    if (canvas_measure("0", false) <= 0) {
        snprintf(message, DRAW_MESSAGE_BYTES, "cairo finds no font; install one, such as fonts-dejavu-core");
        return false;
    }
    for (size_t i = 0; i < p->heads; i++)
        request.head_title = fmax(request.head_title, canvas_measure(p->head_titles[i], true));
    make_legend(d);
    request.num_legend = d->num_legend;
    for (size_t i = 0; i < d->num_legend; i++) request.legend[i] = item_ems(d, i);
    legend_item *const note = &d->legend[d->num_legend - 1];
    bool fits_in = layout_make(&request, &d->layout);
    /* How many tokens have a label is known only now. A longer note may make cells smaller, once. */
    for (int named = 1; fits_in && d->layout.stride != named && named >= 0;) {
        named = named == 1 ? d->layout.stride : -1;
        note_stride(note, d->layout.stride);
        request.legend[d->num_legend - 1] = item_ems(d, d->num_legend - 1);
        fits_in = layout_make(&request, &d->layout);
    }
    return fits_in || explain_size(p, message);
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
    d.colours = malloc(p->rows * p->columns * sizeof *d.colours);
    FILE *const file = open_memstream(&data, &result->bytes);
    const bool drawn = d.colours && file && draw_all(&d, file);
    const bool closed = file && fclose(file) == 0;
    free(d.colours);
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
