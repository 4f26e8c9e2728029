/* Cells are collected first and printed at the end, when the width of each column is known. */
#define _GNU_SOURCE
#include "common/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct table {
    const char *alignments;
    const char *const *headers;
    size_t columns, count, capacity;
    char **cells;
    bool failed;
};

table *table_create(const char *alignments, const char *const *headers) {
    table *const t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->alignments = alignments;
    t->headers = headers;
    t->columns = strlen(alignments);
    return t;
}

void table_cell(table *t, const char *format, ...) {
    if (!t || t->failed) return;
    if (t->count == t->capacity) {
        const size_t capacity = t->capacity ? 2 * t->capacity : 64;
        char **const grown = realloc(t->cells, capacity * sizeof *grown);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->cells = grown;
        t->capacity = capacity;
    }
    va_list list;
    va_start(list, format);
    if (vasprintf(&t->cells[t->count], format, list) < 0)
        t->failed = true;
    else
        t->count++;
    va_end(list);
}

static int by_cells(const void *left, const void *right) {
    char *const *const a = left, *const *const b = right;
    const int order = strcmp(a[0], b[0]);
    return order ? order : strcmp(a[1], b[1]);
}

void table_sort(table *t) {
    if (t && t->columns > 1 && t->count)
        qsort(t->cells, t->count / t->columns, t->columns * sizeof *t->cells, by_cells);
}

/* Columns on the screen: UTF-8 continuation bytes take none. */
static size_t width_of(const char *text) {
    size_t width = 0;
    for (; *text; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_padded(FILE *stream, const char *text, size_t width, char alignment, bool last) {
    const size_t own = width_of(text);
    const int gap = (int)(width > own ? width - own : 0);
    if (alignment == 'r')
        fprintf(stream, "%*s%s", gap, "", text);
    else
        fprintf(stream, "%s%*s", text, last ? 0 : gap, "");
}

static size_t column_width(const table *t, size_t column) {
    size_t width = t->headers ? width_of(t->headers[column]) : 0;
    for (size_t i = column; i < t->count; i += t->columns) {
        const size_t own = width_of(t->cells[i]);
        if (own > width) width = own;
    }
    return width;
}

/* Whether the stream is a terminal with colour and NO_COLOR is not set. */
static bool has_colour(FILE *stream) {
    const char *const none = getenv("NO_COLOR"), *const terminal = getenv("TERM");
    return !(none && *none) && isatty(fileno(stream)) && terminal && strcmp(terminal, "dumb") != 0;
}

void table_finish(table *t, FILE *stream) {
    if (!t) return;
    const bool colour = has_colour(stream);
    const size_t rows = t->count / t->columns;
    for (size_t row = t->headers ? 0 : 1; row <= rows; row++) {
        for (size_t column = 0; column < t->columns; column++) {
            /* Row 0 holds the headers; in a block without them the first column is the label. */
            const char *const text = row ? t->cells[(row - 1) * t->columns + column] : t->headers[column];
            const bool bright = colour && (row == 0 || (!t->headers && column == 0));
            if (column) fputs("  ", stream);
            if (bright) fputs(t->headers ? "\033[1m" : "\033[36m", stream);
            print_padded(stream, text, column_width(t, column), t->alignments[column], column + 1 == t->columns);
            if (bright) fputs("\033[0m", stream);
        }
        fputc('\n', stream);
    }
    table_discard(t);
}

void table_discard(table *t) {
    if (!t) return;
    for (size_t i = 0; i < t->count; i++) free(t->cells[i]);
    free(t->cells);
    free(t);
}

static const char *print_unit(double value, const char *unit, char text[TABLE_NUMBER_BYTES]) {
    const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    snprintf(text, TABLE_NUMBER_BYTES, "%.*f %s", digits, value, unit);
    return text;
}

const char *table_time(double microseconds, char text[TABLE_NUMBER_BYTES]) {
    if (microseconds < 0.9995) return print_unit(microseconds * 1e3, "ns", text);
    if (microseconds < 999.5) return print_unit(microseconds, "µs", text);
    if (microseconds < 999.5e3) return print_unit(microseconds * 1e-3, "ms", text);
    return print_unit(microseconds * 1e-6, "s", text);
}

const char *table_duration(double seconds, char text[TABLE_NUMBER_BYTES]) {
    const long long all = (long long)(seconds < 9e15 ? seconds + 0.5 : 9e15), hours = all / 3600,
                    minutes = all / 60 % 60;
    if (hours)
        snprintf(text, TABLE_NUMBER_BYTES, "%lld h %lld min", hours, minutes);
    else if (minutes)
        snprintf(text, TABLE_NUMBER_BYTES, "%lld min %lld s", minutes, all % 60);
    else
        snprintf(text, TABLE_NUMBER_BYTES, "%lld s", all);
    return text;
}

const char *table_bytes(uint64_t bytes, char text[TABLE_NUMBER_BYTES]) {
    if (bytes < 1024)
        snprintf(text, TABLE_NUMBER_BYTES, "%u B", (unsigned)bytes);
    else if (bytes < 1024 * 1024)
        print_unit((double)bytes / 1024, "KiB", text);
    else
        print_unit((double)bytes / (1024 * 1024), "MiB", text);
    return text;
}
