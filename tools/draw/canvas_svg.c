/* SVG as text of its own: cairo's would have outlines in place of letters, which cannot be searched, read aloud or
 * selected. The cells of a head are rectangles or, if they are too many for those, an image with as many pixels as the
 * PNG of the whole picture has: a viewer that smooths what it enlarges finds nothing to smooth. */
#include "canvas.h"

#include <stdlib.h>
#include <string.h>

struct canvas {
    FILE *file;
    bool failed;
};

static void put_escaped(FILE *file, const char *text) {
    for (; *text; text++) switch (*text) {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '"': fputs("&quot;", file); break;
        default: fputc(*text, file);
        }
}

static void put_title(FILE *file, const char *title) {
    fputs("<title>", file);
    put_escaped(file, title);
    fputs("</title>", file);
}

static canvas *create(int width, int height, int zoom, const char *title, FILE *file) {
    (void)zoom;
    canvas *const c = malloc(sizeof *c);
    if (!c) return NULL;
    *c = (canvas){.file = file};
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" width=\"%d\" "
            "height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"DejaVu Sans, Verdana, Arial, sans-serif\" "
            "shape-rendering=\"crispEdges\" xml:space=\"preserve\">",
            width, height, width, height);
    put_title(file, title);
    fprintf(file,
            "<defs><pattern id=\"stripes\" width=\"%d\" height=\"%d\" patternUnits=\"userSpaceOnUse\" "
            "patternTransform=\"rotate(45)\"><rect width=\"%g\" height=\"%d\" fill=\"#%06x\"/></pattern></defs>\n",
            2 * CANVAS_STRIPE, 2 * CANVAS_STRIPE, (double)CANVAS_STRIPE, 2 * CANVAS_STRIPE, COLOUR_STRIPE);
    return c;
}

static void begin_group(canvas *c, const char *name, const char *title) {
    fprintf(c->file, "<g class=\"%s\">", name);
    put_title(c->file, title);
    fputc('\n', c->file);
}

static void end_group(canvas *c) { fputs("</g>\n", c->file); }

static void put_rectangle(canvas *c, int x, int y, int width, int height) {
    fprintf(c->file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"", x, y, width, height);
}

static void rectangle(canvas *c, int x, int y, int width, int height, colour fill) {
    put_rectangle(c, x, y, width, height);
    fprintf(c->file, "#%06x\"/>\n", fill);
}

static void line(canvas *c, double x0, double y0, double x1, double y1, colour stroke) {
    fprintf(c->file,
            "<line x1=\"%.5g\" y1=\"%.5g\" x2=\"%.5g\" y2=\"%.5g\" stroke=\"#%06x\" stroke-width=\"2\" "
            "stroke-linecap=\"round\" shape-rendering=\"auto\"/>\n",
            x0, y0, x1, y1, stroke);
}

static void polygon(canvas *c, const double *corners, int count, colour fill) {
    fputs("<polygon points=\"", c->file);
    for (int i = 0; i < count; i++) fprintf(c->file, "%s%.5g,%.5g", i ? " " : "", corners[2 * i], corners[2 * i + 1]);
    fprintf(c->file, "\" fill=\"#%06x\" shape-rendering=\"auto\"/>\n", fill);
}

static void stripes(canvas *c, int x, int y, int width, int height) {
    put_rectangle(c, x, y, width, height);
    fputs("url(#stripes)\"/>\n", c->file);
}

static void put_base64(FILE *file, const unsigned char *data, size_t bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i += 3) {
        const size_t left = bytes - i;
        const uint32_t bits =
            (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) | (left > 2 ? data[i + 2] : 0);
        fputc(digits[bits >> 18], file);
        fputc(digits[bits >> 12 & 63], file);
        fputc(left > 1 ? digits[bits >> 6 & 63] : '=', file);
        fputc(left > 2 ? digits[bits & 63] : '=', file);
    }
}

/* Neighbours of one colour share a rectangle. */
static void put_rectangles(canvas *c, int x, int y, const canvas_cells *m) {
    for (int row = 0; row < m->rows; row++)
        for (int begin = 0, end = 0; begin < m->columns; begin = end) {
            const colour *const line = m->colours + (size_t)row * (size_t)m->columns;
            while (end < m->columns && line[end] == line[begin]) end++;
            rectangle(c, x + begin * m->width, y + row * m->height, (end - begin) * m->width, m->height, line[begin]);
        }
}

static void put_image(canvas *c, int x, int y, const canvas_cells *m) {
    char *data = NULL;
    size_t bytes = 0;
    FILE *const png = open_memstream(&data, &bytes);
    const bool encoded = png && canvas_encode_cells(m, png);
    if ((png && fclose(png) != 0) || !encoded) c->failed = true;
    if (!c->failed) {
        /* optimizeSpeed is what programs that only know SVG 1.1 call "pixelated". */
        fprintf(c->file,
                "<image x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" preserveAspectRatio=\"none\" "
                "image-rendering=\"optimizeSpeed\" style=\"image-rendering:pixelated\" "
                "xlink:href=\"data:image/png;base64,",
                x, y, m->columns * m->width, m->rows * m->height);
        put_base64(c->file, (const unsigned char *)data, bytes);
        fputs("\"/>\n", c->file);
    }
    free(data);
}

static void cells(canvas *c, int x, int y, const canvas_cells *m) {
    enum { MOST_RECTANGLES = 4096 };
    const bool is_small = m->rows * (double)m->columns <= MOST_RECTANGLES;
    (is_small ? put_rectangles : put_image)(c, x, y, m);
}

static void text(canvas *c, const canvas_text *t) {
    static const char *const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
    fprintf(c->file, "<text x=\"%d\" y=\"%d\" font-size=\"%d\"%s%s", t->x, t->y, t->size, anchors[t->anchor],
            t->is_bold ? " font-weight=\"bold\"" : "");
    if (t->is_turned) fprintf(c->file, " transform=\"rotate(-90 %d %d)\"", t->x, t->y);
    fprintf(c->file, " fill=\"#%06x\">", t->colour);
    if (t->full) put_title(c->file, t->full);
    put_escaped(c->file, t->text);
    fputs("</text>\n", c->file);
}

static bool finish(canvas *c) {
    const bool is_good = !c->failed && fputs("</svg>\n", c->file) >= 0 && !ferror(c->file);
    free(c);
    return is_good;
}

const canvas_type canvas_svg = {create, begin_group, end_group, rectangle, line, polygon, stripes, cells, text, finish};
