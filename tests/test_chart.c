/* Line charts: scales, ticks, marks, and the contents of PNG and SVG files. */
#include "draw/chart.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { POINTS = 6 };
static const double doubling[POINTS] = {128, 256, 512, 1024, 2048, 4096};
static const double shares[POINTS] = {0.1, 0.9, 0.5, 0.7, 3.0, 0.2}; /* one is beyond the axis */

static chart chart_of(const chart_line *lines, size_t num_lines) {
    return (chart){.title = "Title & more",
                   .subtitle = "below it",
                   .x_title = "seq_q",
                   .y_title = "share",
                   .lines = lines,
                   .num_lines = num_lines,
                   .x_is_log = true,
                   .y_high = 1,
                   .y_is_share = true};
}

/* The SVG of a chart; free it. */
static char *draw(const chart *c) {
    draw_result result;
    char message[DRAW_MESSAGE_BYTES] = "";
    if (!attune_chart_2(c, DRAW_SVG, &result, message)) fail_msg("%s", message);
    assert_int_equal(strlen((char *)result.data), result.bytes);
    return (char *)result.data;
}

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) count++;
    return count;
}

/* Where the text stands: the x or y of its anchor. */
static double place(const char *svg, const char *text, const char *axis) {
    char end[64];
    snprintf(end, sizeof end, ">%s</text>", text);
    const char *const at = strstr(svg, end);
    if (!at) fail_msg("there is no text %s", text);
    const char *begin = at;
    while (strncmp(begin, "<text", 5) != 0) begin--;
    return strtod(strstr(begin, axis) + strlen(axis), NULL);
}

static void what_doubles_is_as_far_apart(void **state) {
    (void)state;
    const chart_line line = {"one", POINTS, doubling, shares};
    const chart c = chart_of(&line, 1);
    char *const svg = draw(&c);
    const double step = place(svg, "256", " x=\"") - place(svg, "128", " x=\"");
    assert_true(step > 20);
    assert_true(fabs(place(svg, "2048", " x=\"") - place(svg, "128", " x=\"") - 4 * step) < 2);
    assert_true(place(svg, "100 %", " y=\"") < place(svg, "20 %", " y=\""));
    assert_int_equal(occurrences(svg, ">Title &amp; more</text>"), 1);
    assert_int_equal(occurrences(svg, ">below it</text>"), 1);
    assert_int_equal(occurrences(svg, ">one</text>"), 0); /* one line needs no legend */
    free(svg);
    const chart_line large = {"one", 2, (const double[]){1 << 20, 1 << 21}, shares};
    const chart other = chart_of(&large, 1);
    char *const digits = draw(&other);
    assert_int_equal(occurrences(digits, ">1048576</text>"), 1);
    free(digits);
}

static void many_points_have_round_ticks(void **state) {
    (void)state;
    enum { MANY = 50 };
    double x[MANY], y[MANY];
    for (int i = 0; i < MANY; i++) {
        x[i] = 500 + 91 * i;
        y[i] = 0.5;
    }
    const chart_line line = {"one", MANY, x, y};
    chart c = chart_of(&line, 1);
    c.x_is_log = false;
    char *const svg = draw(&c);
    assert_int_equal(occurrences(svg, ">591</text>"), 0);
    const double step = place(svg, "2000", " x=\"") - place(svg, "1000", " x=\"");
    assert_true(step > 50 && fabs(place(svg, "4000", " x=\"") - place(svg, "2000", " x=\"") - 2 * step) < 4);
    free(svg);
}

/* Every corner of a mark lies within the picture, even for values beyond the axis. */
static void marks_stay_inside(void **state) {
    (void)state;
    chart_line lines[CHART_MAX_LINES];
    for (size_t l = 0; l < CHART_MAX_LINES; l++) lines[l] = (chart_line){"a line", POINTS, doubling, shares};
    const chart c = chart_of(lines, CHART_MAX_LINES);
    char *const svg = draw(&c);
    const double width = strtod(strstr(svg, " width=\"") + 8, NULL),
                 height = strtod(strstr(svg, " height=\"") + 9, NULL);
    /* A mark has paper around it; the legend has one of each line. */
    assert_int_equal(occurrences(svg, "<polygon "), 2 * CHART_MAX_LINES * (POINTS + 1));
    assert_int_equal(occurrences(svg, "<line "), CHART_MAX_LINES * POINTS);
    for (char *at = svg; (at = strstr(at, "points=\""));)
        for (at += 8; *at != '"';) {
            const double x = strtod(at, &at), y = strtod(at + 1, &at);
            assert_true(x > 0 && x < width && y > 0 && y < height);
        }
    assert_int_equal(occurrences(svg, ">a line</text>"), CHART_MAX_LINES);
    free(svg);
}

static void names_stand_below_marks_beside_each_other(void **state) {
    (void)state;
    const double x[] = {0, 1}, y[] = {0.5, 0.5};
    const chart_line lines[] = {{"first", 2, x, y}, {"second", 2, x, y}};
    chart c = chart_of(lines, 2);
    c.x_is_log = false;
    c.x_names = (const char *const[]){"f32", "bf16"};
    char *const svg = draw(&c);
    assert_true(place(svg, "f32", " x=\"") < place(svg, "bf16", " x=\""));
    assert_int_equal(occurrences(svg, "<line "), 0);
    /* The same value of both lines in two places. */
    char *const first = strstr(svg, "<polygon "), *const second = strstr(strstr(svg, ">second</title>"), "<polygon ");
    const double left = strtod(strstr(first, "points=\"") + 8, NULL),
                 right = strtod(strstr(second, "points=\"") + 8, NULL);
    assert_true(right - left > 3);
    free(svg);
}

static void names_that_would_overlap_are_left_out(void **state) {
    (void)state;
    enum { MANY = 61 };
    double x[MANY], y[MANY];
    char texts[MANY][16];
    const char *names[MANY];
    for (int i = 0; i < MANY; i++) {
        snprintf(texts[i], sizeof texts[i], "a name %d", i);
        names[i] = texts[i];
        x[i] = i;
        y[i] = 0.5;
    }
    const chart_line line = {"one", MANY, x, y};
    chart c = chart_of(&line, 1);
    c.x_is_log = false;
    c.x_names = names;
    char *const svg = draw(&c);
    const size_t shown = occurrences(svg, ">a name ");
    assert_true(shown >= 4 && shown <= 12);
    assert_int_equal(occurrences(svg, ">a name 0</text>"), 1);
    free(svg);
}

static void a_scale_may_have_a_zero(void **state) {
    (void)state;
    enum { MANY = 50 };
    double x[MANY], y[MANY];
    for (int i = 0; i < MANY; i++) {
        x[i] = i - 20.5;
        y[i] = 0.5;
    }
    const chart_line line = {"one", MANY, x, y};
    chart c = chart_of(&line, 1);
    c.x_is_log = false;
    char *const svg = draw(&c);
    assert_true(place(svg, "0", " x=\"") > place(svg, "-10", " x=\""));
    assert_int_equal(occurrences(svg, ">-0</text>"), 0);
    free(svg);
}

static void a_png_has_two_pixels_for_each_unit(void **state) {
    (void)state;
    const chart_line line = {"one", POINTS, doubling, shares};
    const chart c = chart_of(&line, 1);
    draw_result svg, png;
    char message[DRAW_MESSAGE_BYTES] = "";
    assert_true(attune_chart_2(&c, DRAW_SVG, &svg, message) && attune_chart_2(&c, DRAW_PNG, &png, message));
    assert_memory_equal(png.data, "\x89PNG", 4);
    assert_int_equal(png.data[18] << 8 | png.data[19], png.width); /* of the header, big-endian */
    assert_int_equal(png.width, 2 * svg.width);
    assert_int_equal(png.height, 2 * svg.height);
    free(svg.data);
    free(png.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_doubles_is_as_far_apart),
        cmocka_unit_test(many_points_have_round_ticks),
        cmocka_unit_test(marks_stay_inside),
        cmocka_unit_test(names_stand_below_marks_beside_each_other),
        cmocka_unit_test(names_that_would_overlap_are_left_out),
        cmocka_unit_test(a_scale_may_have_a_zero),
        cmocka_unit_test(a_png_has_two_pixels_for_each_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
