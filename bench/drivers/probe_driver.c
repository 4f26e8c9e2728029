/* What the CPU can do at most, behind the protocol of docs/bench.md: "peak f32", "peak bf16" and "peak f64" in GFLOP/s
 * (0 where the ISA has no such instruction), "bandwidth BYTES" in GB/s for a buffer of that size. usage: probe_driver
 * THREADS ISA */
#define _GNU_SOURCE
#include "driver.h"

#include "measure/bandwidth.h"
#include "measure/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t threads;
static const char *isa;
static peak_probe *peak;

static const struct {
    const char *question;
    attune_dtype dtype;
} peaks[] = {{"peak f32", ATTUNE_F32}, {"peak bf16", ATTUNE_BF16}, {"peak f64", ATTUNE_F64}};

/* One buffer at a time, and the streams in which it is read fastest. */
static double bandwidth(size_t bytes) {
    static bandwidth_probe *probe;
    static size_t size;
    static int streams;
    if (size != bytes) {
        bandwidth_destroy(probe);
        probe = bandwidth_create(isa, threads, bytes);
        size = probe ? bytes : 0;
        streams = probe ? bandwidth_choose_streams(probe, bytes) : 0;
    }
    return probe ? bandwidth_measure(probe, bytes, streams) : 0;
}

static bool ask(const char *line, char text[DRIVER_TEXT]) {
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (strcmp(line, peaks[i].question) == 0) {
            snprintf(text, DRIVER_TEXT, "%.3f", peak_measure(peak, peaks[i].dtype));
            return true;
        }
    if (sscanf(line, "bandwidth %zu", &bytes) != 1 || !bytes) return false;
    snprintf(text, DRIVER_TEXT, "%.3f", bandwidth(bytes));
    return true;
}

static bool prepare(const driver_problem *p, char text[DRIVER_TEXT]) {
    (void)p;
    snprintf(text, DRIVER_TEXT, "this driver only probes");
    return false;
}

static void drop(void) {}

int main(int argc, char **argv) {
    if (argc != 3 || !(threads = (uint32_t)strtoul(argv[1], NULL, 10))) {
        fprintf(stderr, "usage: probe_driver THREADS ISA\n");
        return 2;
    }
    isa = argv[2];
    if (!(peak = peak_create(isa, threads))) return 1;
    const driver d = {"none", "probe", prepare, NULL, NULL, drop, ask};
    const int code = driver_serve(&d);
    peak_destroy(peak);
    return code;
}
