/* What a reader elsewhere needs to judge the figures: instruction sets, CPUs, memory, C library, and the median of
 * the peaks. */
#include "measure/report.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static int compare_numbers(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the cases' peaks: each of them is one over the same minutes. */
static double median_peak(const bench_case *cases, size_t count, attune_dtype dtype) {
    double *const peaks = malloc((count + 1) * sizeof *peaks);
    if (!peaks) return 0;
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        if (cases[i].peak_dtype == dtype) peaks[found++] = cases[i].peak_gflops;
    qsort(peaks, found, sizeof *peaks, compare_numbers);
    const double median = found ? peaks[found / 2] : 0;
    free(peaks);
    return median;
}

static json_t *peaks_json(const bench_case *cases, size_t count) {
    json_t *const peaks = json_object();
    for (size_t i = 0; i < count; i++) {
        const char *const name = tool_dtype_name(cases[i].peak_dtype);
        if (!json_object_get(peaks, name))
            json_object_set_new(peaks, name, json_real(median_peak(cases, count, cases[i].peak_dtype)));
    }
    return peaks;
}

json_t *report_json(const attune_machine_info *machine, const bench_case *cases, size_t count) {
    struct utsname names;
    char system[sizeof names.sysname + sizeof names.release + sizeof names.machine + 2] = "";
    if (uname(&names) == 0) snprintf(system, sizeof system, "%s %s %s", names.sysname, names.release, names.machine);
    const json_int_t memory = (json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:o}", "isas", machine->isas, "machine_description",
                     machine->machine_description, "cpus", (json_int_t)machine->max_workers, "memory_bytes", memory,
                     "system", system, "libc", gnu_get_libc_version(), "peaks_gflops", peaks_json(cases, count));
}
