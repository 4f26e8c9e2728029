/* Reads requests and the inputs of a problem from files once for all drivers, so that a driver is one function that
 * computes. */
#define _GNU_SOURCE
#include "driver.h"

#include "common/pages.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Problems and their inputs ---- */

int64_t driver_out_count(const driver_problem *p) {
    return p->kind == DRIVER_ATTENTION ? p->batch * p->heads * p->rows * p->dim : p->batch * p->rows * p->embed;
}

double driver_scale(const driver_problem *p) { return 1 / sqrt((double)p->dim); }

void *driver_alloc(size_t bytes, char text[DRIVER_TEXT]) {
    void *const memory = pages_alloc((bytes + 127) & ~(size_t)63);
    if (memory)
        memset(memory, 0, bytes);
    else
        snprintf(text, DRIVER_TEXT, "out of memory: %zu bytes", bytes);
    return memory;
}

/* A whole file of `count` elements of `width` bytes. */
static void *read_file(const driver_problem *p, const char *name, int64_t count, size_t width, char text[DRIVER_TEXT]) {
    char path[DRIVER_TEXT + 64];
    const size_t numbers = (size_t)count;
    snprintf(path, sizeof path, "%s/%s", p->data, name);
    FILE *const file = fopen(path, "rb");
    if (!file) {
        snprintf(text, DRIVER_TEXT, "cannot open the input %s", name);
        return NULL;
    }
    void *data = driver_alloc(numbers * width, text);
    if (data && (fread(data, width, numbers, file) != numbers || fgetc(file) != EOF)) {
        snprintf(text, DRIVER_TEXT, "the input %s has not %" PRId64 " numbers", name, count);
        free(data);
        data = NULL;
    }
    fclose(file);
    return data;
}

float *driver_read(const driver_problem *p, const char *name, int64_t count, char text[DRIVER_TEXT]) {
    return (float *)read_file(p, name, count, sizeof(float), text);
}

uint8_t *driver_read_codes(const driver_problem *p, const char *name, int64_t count, char text[DRIVER_TEXT]) {
    char full[64];
    snprintf(full, sizeof full, "%.32s_codes", name);
    return (uint8_t *)read_file(p, full, count, 1, text);
}

float driver_from_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t *driver_read_f16(const driver_problem *p, const char *name, int64_t count, char text[DRIVER_TEXT]) {
    float *const wide = driver_read(p, name, count, text);
    uint16_t *const narrow = wide ? (uint16_t *)driver_alloc((size_t)count * sizeof *narrow, text) : NULL;
    for (int64_t i = 0; narrow && i < count; i++) {
        const _Float16 value = (_Float16)wide[i];
        memcpy(&narrow[i], &value, sizeof value);
    }
    free(wide);
    return narrow;
}

uint16_t *driver_read_bf16(const driver_problem *p, const char *name, int64_t count, char text[DRIVER_TEXT]) {
    float *const wide = driver_read(p, name, count, text);
    uint16_t *const narrow = wide ? (uint16_t *)driver_alloc((size_t)count * sizeof *narrow, text) : NULL;
    for (int64_t i = 0; narrow && i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof bits);
        narrow[i] = (uint16_t)(bits >> 16); /* exact: such numbers have nothing below */
    }
    free(wide);
    return narrow;
}

/* ---- The protocol ---- */

static const struct {
    const char *name;
    size_t offset;
} numbers[] = {
    {"batch", offsetof(driver_problem, batch)},       {"heads", offsetof(driver_problem, heads)},
    {"kv_heads", offsetof(driver_problem, kv_heads)}, {"rows", offsetof(driver_problem, rows)},
    {"keys", offsetof(driver_problem, keys)},         {"dim", offsetof(driver_problem, dim)},
    {"embed", offsetof(driver_problem, embed)},       {"threads", offsetof(driver_problem, threads)},
};

static bool set_number(driver_problem *p, const char *key, const char *value) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(key, numbers[i].name) != 0) continue;
        *(int64_t *)(void *)((char *)p + numbers[i].offset) = strtoll(value, NULL, 10);
        return true;
    }
    return false;
}

static bool set_kind(driver_problem *p, const char *value) {
    static const char *const names[] = {"attention", "block", "products"};
    for (int i = 0; i < 3; i++)
        if (strcmp(value, names[i]) == 0) {
            p->kind = (driver_kind)i;
            return true;
        }
    return false;
}

static const struct {
    const char *name;
    size_t offset, size;
} words[] = {
    {"method", offsetof(driver_problem, method), sizeof(((driver_problem *)NULL)->method)},
    {"data", offsetof(driver_problem, data), sizeof(((driver_problem *)NULL)->data)},
    {"kv", offsetof(driver_problem, kv), sizeof(((driver_problem *)NULL)->kv)},
    {"scales", offsetof(driver_problem, scales), sizeof(((driver_problem *)NULL)->scales)},
};

static bool set(driver_problem *p, const char *key, const char *value) {
    if (strcmp(key, "kind") == 0) return set_kind(p, value);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(key, words[i].name) == 0)
            return snprintf((char *)p + words[i].offset, words[i].size, "%s", value) < (int)words[i].size;
    if (strcmp(key, "causal") == 0)
        p->is_causal = strcmp(value, "1") == 0;
    else if (strcmp(key, "dtype") == 0)
        p->is_bf16 = strcmp(value, "bf16") == 0;
    else
        return set_number(p, key, value);
    return true;
}

/* "key=value key=value …" */
static bool parse(char *line, driver_problem *p, char text[DRIVER_TEXT]) {
    char *rest = line;
    *p = (driver_problem){.batch = 1};
    for (char *word = strtok_r(rest, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *const equals = strchr(word, '=');
        if (equals) *equals = 0;
        if (equals && set(p, word, equals + 1)) continue;
        snprintf(text, DRIVER_TEXT, "cannot read '%s' of the problem", word);
        return false;
    }
    return true;
}

static double now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static bool run_calls(const driver *d, int64_t calls, char text[DRIVER_TEXT]) {
    for (int64_t i = 0; i < calls; i++)
        if (!d->call(text)) return false;
    return true;
}

/* Nanoseconds of one of them, by the clock and of the processor, in `text`. */
static bool time_calls(const driver *d, int64_t calls, char text[DRIVER_TEXT]) {
    const double cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), start = now_ns(CLOCK_MONOTONIC);
    if (!run_calls(d, calls, text)) return false;
    const double ns = now_ns(CLOCK_MONOTONIC) - start, cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    snprintf(text, DRIVER_TEXT, "%.3f %.3f", ns / (double)calls, cpu_ns / (double)calls);
    return true;
}

static bool run(const driver *d, const char *line, char text[DRIVER_TEXT]) {
    int64_t warm = 0, calls = 0;
    if (sscanf(line, "%" SCNd64 " %" SCNd64, &warm, &calls) != 2 || calls < 1) {
        snprintf(text, DRIVER_TEXT, "run takes two numbers");
        return false;
    }
    return run_calls(d, warm, text) && time_calls(d, calls, text);
}

/* One call, whose time is the answer: the first of a long one tells how long it is. */
static bool write_output(const driver *d, const driver_problem *p, const char *path, char text[DRIVER_TEXT]) {
    const size_t count = (size_t)driver_out_count(p);
    bool good = false;
    if (!time_calls(d, 1, text)) return false;
    float *const out = (float *)driver_alloc(count * sizeof *out, text);
    if (!out) return false;
    d->output(out);
    FILE *const file = fopen(path, "wb");
    good = file && fwrite(out, sizeof *out, count, file) == count;
    if (file && fclose(file) != 0) good = false;
    free(out);
    if (!good) snprintf(text, DRIVER_TEXT, "cannot write the output");
    return good;
}

static bool starts_with(const char *line, const char *word, const char **rest) {
    const size_t length = strlen(word);
    if (strncmp(line, word, length) != 0 || (line[length] && line[length] != ' ')) return false;
    *rest = line[length] ? line + length + 1 : line + length;
    return true;
}

static bool answer(const driver *d, driver_problem *p, bool *is_ready, char *line, char text[DRIVER_TEXT]) {
    const char *rest;
    if (starts_with(line, "prepare", &rest)) {
        if (*is_ready) d->drop();
        *is_ready = parse((char *)rest, p, text) && d->prepare(p, text);
        if (!*is_ready) d->drop();
        return *is_ready;
    }
    if (d->ask && d->ask(line, text)) return true;
    if (!*is_ready) {
        snprintf(text, DRIVER_TEXT, "nothing is prepared");
        return false;
    }
    if (starts_with(line, "run", &rest)) return run(d, rest, text);
    if (starts_with(line, "write", &rest)) return write_output(d, p, rest, text);
    if (starts_with(line, "drop", &rest)) {
        d->drop();
        *is_ready = false;
        return true;
    }
    snprintf(text, DRIVER_TEXT, "what is '%.64s'?", line);
    return false;
}

int driver_serve(const driver *d) {
    char *line = NULL;
    size_t capacity = 0;
    driver_problem problem = {0};
    bool is_ready = false;
    printf("hello %s %s\n", d->methods, d->version);
    fflush(stdout);
    for (ssize_t length; (length = getline(&line, &capacity, stdin)) > 0;) {
        char text[DRIVER_TEXT] = "";
        line[strcspn(line, "\n")] = 0;
        const bool good = answer(d, &problem, &is_ready, line, text);
        text[strcspn(text, "\n")] = 0;
        printf("%s%s%s\n", good ? "ok" : "no", *text ? " " : "", text);
        fflush(stdout);
    }
    if (is_ready) d->drop();
    free(line);
    return 0;
}
