/* The same figures twice, as text for people and as JSON; one that was not measured is left out or null. */
#include "measure/tune_report.h"

#include "common/json_output.h"
#include "common/table.h"
#include "common/tool.h"

#include <math.h>

/* More than this is not how a quiet machine measures. */
static const double BUSY = 0.05, NOISY = 0.05;

void tune_report_probe(tune_report *report, peak_probe *probe) {
    enum { TIMES = 8 };
    for (int i = 0; i < TIMES; i++)
        report->peak_gflops = fmax(report->peak_gflops, peak_measure(probe, report->peak_dtype));
}

/* 0: not known. A peak that is lower than what was computed was disturbed. */
static double share_of_peak(const tune_report *report, double seconds) {
    const double share =
        seconds > 0 && report->peak_gflops > 0 ? report->flops / seconds * 1e-9 / report->peak_gflops : 0;
    return share < 1.1 ? share : 0;
}

/* ---- JSON ---- */

/* A measurement, which is above 0 if it is known; otherwise null. */
static json_t *known(double value) { return value > 0 ? json_number(value) : json_null(); }

static json_t *times_json(const tune_report *report, double seconds, double spread) {
    return json_pack("{s:o, s:o, s:o}", "seconds", known(seconds), "spread",
                     seconds > 0 ? json_number(spread) : json_null(), "fraction_of_peak",
                     known(share_of_peak(report, seconds)));
}

json_t *tune_report_json(const tune_report *report) {
    const attune_tune_result *const r = &report->result;
    json_t *const object =
        json_pack("{s:o, s:s, s:b, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o}", "problem", tool_json_text(report->problem),
                  "schedule", report->schedule, "is_faster", r->is_faster, "ratio", json_number(r->ratio), "ratio_low",
                  json_number(r->ratio_low), "ratio_high", json_number(r->ratio_high), "space", (json_int_t)r->space,
                  "measured", (json_int_t)r->measured, "failed", (json_int_t)r->failed, "wrong", (json_int_t)r->wrong,
                  "seconds", json_number(r->seconds));
    json_t *const more =
        json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "threads", (int)r->threads, "before",
                  times_json(report, r->seconds_before, r->spread_before), "after",
                  times_json(report, r->seconds_after, r->spread_after), "noise", known(r->noise), "detectable",
                  json_number(r->detectable), "interrupted", json_number(r->interrupted), "peak_gflops",
                  known(report->peak_gflops), "peak_dtype", tool_dtype_name(report->peak_dtype));
    const bool is_good = object && more && !json_object_update(object, more) &&
                         (!r->wrong || !json_object_set_new(object, "wrong_schedule", json_string(r->wrong_schedule)));
    json_decref(more);
    if (is_good) return object;
    json_decref(object);
    return NULL;
}

/* ---- Text ---- */

static void print_times(const tune_report *report, const char *name, double seconds, double spread) {
    char text[TABLE_NUMBER_BYTES];
    const double share = share_of_peak(report, seconds);
    if (!(seconds > 0)) return;
    printf("  %-9s %s ± %.1f %%", name, table_time(seconds * 1e6, text), 100 * spread);
    if (share > 0)
        printf(", %.1f %% of the peak of %.1f GFLOP/s in %s", 100 * share, report->peak_gflops,
               tool_dtype_name(report->peak_dtype));
    printf("\n");
}

/* A schedule that seemed to be faster until it was measured again. */
static bool has_candidate(const attune_tune_result *r) { return r->ratio > 0 && r->ratio < 1; }

/* Of the time before: 0.75 of it is 25 % faster. */
static double faster(double ratio) { return 100 * (1 - ratio); }

static void print_outcome(const attune_tune_result *r) {
    if (r->is_faster)
        printf("%.1f %% faster (%.1f to %.1f %%)", faster(r->ratio), faster(r->ratio_high), faster(r->ratio_low));
    else if (r->measured && has_candidate(r))
        printf("nothing is faster beyond doubt; the best is %.1f %% faster, between %.1f %% faster and %.1f %% %s",
               faster(r->ratio), faster(r->ratio_low), fabs(faster(r->ratio_high)),
               r->ratio_high > 1 ? "slower" : "faster");
    else if (r->measured)
        printf("nothing faster was found");
    else if (r->space <= 1)
        printf("there is nothing to choose: this is the only schedule");
    else
        printf("the time was too short for one comparison: give it a longer --budget");
}

/* How much "nothing faster" means. */
static void print_certainty(const attune_tune_result *r) {
    if (r->is_faster || !r->measured) return;
    if (r->detectable < 1)
        printf("  %-9s of the schedules timed, one that is %.1f %% faster would have been seen nine times in ten;\n"
               "  %-9s smaller gains may have been missed (noise: times of one kernel differ by %.1f %%)\n",
               "certainty", 100 * r->detectable, "", 100 * r->noise);
    else
        printf("  %-9s none: too few schedules were compared to know the noise. Give it a longer --budget\n",
               "certainty");
}

void tune_report_print(const tune_report *report) {
    const attune_tune_result *const r = &report->result;
    printf("%s\n  %-9s %s\n  %-9s %u\n", report->problem, "schedule", report->schedule, "threads", r->threads);
    print_times(report, r->is_faster ? "before" : "time", r->seconds_before, r->spread_before);
    if (r->is_faster) print_times(report, "after", r->seconds_after, r->spread_after);
    printf("  %-9s ", "result");
    print_outcome(r);
    printf("; %llu of %llu schedules timed in %.1f s\n", (unsigned long long)r->measured, (unsigned long long)r->space,
           r->seconds);
    print_certainty(r);
    if (r->failed) printf("  %llu did not compile\n", (unsigned long long)r->failed);
}

void tune_report_warn(const tune_report *report) {
    const attune_tune_result *const r = &report->result;
    if (!r->measured || (r->interrupted <= BUSY && r->noise <= NOISY)) return;
    char taken[96] = "", differ[64] = "";
    if (r->interrupted > BUSY)
        snprintf(taken, sizeof taken, "other programs took a CPU away during %.0f %% of the measurements",
                 100 * r->interrupted);
    if (r->noise > NOISY) snprintf(differ, sizeof differ, "times of one kernel differ by %.1f %%", 100 * r->noise);
    tool_error("warning: the machine was busy: %s%s%s; on a quiet machine, or with a longer --budget, a search finds "
               "more",
               taken, *taken && *differ ? ", and " : "", differ);
}
