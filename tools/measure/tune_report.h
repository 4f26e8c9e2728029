/* The results of `attune tune` for one problem, as text and as JSON. */
#ifndef ATTUNE_TOOLS_TUNE_REPORT_H
#define ATTUNE_TOOLS_TUNE_REPORT_H

#include "measure/peak.h"

#include <jansson.h>

typedef struct tune_report {
    const char *problem, *schedule;
    attune_tune_result result;
    double flops;       /* of the call */
    double peak_gflops; /* probed before and after the search; 0: not known */
    attune_dtype peak_dtype;
} tune_report;

/* The best of a few measurements. To be called before and after a search, so that the peak is that of the same run. */
void tune_report_probe(tune_report *report, peak_probe *probe);

/* A new reference; NULL when out of memory. */
json_t *tune_report_json(const tune_report *report);

void tune_report_print(const tune_report *report);

/* On stderr, if the machine was so busy that gains may have been missed. */
void tune_report_warn(const tune_report *report);

#endif
