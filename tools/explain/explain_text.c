/* The text that `attune explain` prints. */
#include "explain/explain.h"
#include "common/table.h"

#include <string.h>

/* A blank after each comma makes a schedule longer, by less than half. */
enum { INDENT = 14, WIDTH = 110, DIFFERENCE_BYTES = 2 * ATTUNE_SCHEDULE_BYTES };

/* A list with commas, in lines that are not too long. */
static void print_list(const char *name, const char *text) {
    int at = printf("%-*s", INDENT, name);
    while (*text) {
        size_t length = strcspn(text, ",");
        length += text[length] == ',';
        if (at > INDENT && at + (int)length > WIDTH) at = printf("\n%*s", INDENT, "") - 1;
        at += printf("%.*s", (int)length, text);
        text += length;
    }
    printf("\n");
}

static void print_share(const char *name, double part, double whole) {
    if (part > 0) printf("%*s%-10s %4.1f %%\n", INDENT, "", name, 100 * part / whole);
}

static int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

static void print_waste(const char *what, int64_t needed, int64_t step) {
    const int64_t computed = round_up(needed, step);
    if (computed > needed)
        printf("%*sscores are computed for %lld %s instead of %lld: %.1f %% in vain\n", INDENT, "", (long long)computed,
               what, (long long)needed, 100 * (1 - (double)needed / (double)computed));
}

static int registers_of(const char *isa) {
    return strncmp(isa, "avx512", 6) == 0 || strcmp(isa, "amx") == 0 || strcmp(isa, "aarch64") == 0 ? 32 : 16;
}

/* Sums of values of d_lanes. Several streams of one key each are legal only where sums stay in registers. With one
 * stream they do where V has single elements. */
static void print_sums(const mha_schedule *s) {
    const int sums = s->value_rows * s->value_column_vectors;
    printf("%*svalues: %d x %d = %d sum%s, ", INDENT, "", s->value_rows, s->value_column_vectors, sums,
           sums == 1 ? "" : "s");
    if (s->value_keys > 1)
        printf("read and written once for %d keys\n", s->value_keys);
    else
        printf("in registers for a tile of keys%s\n", s->value_streams > 1 ? "" : ", or read and written for each");
}

static void print_attention(const explanation *e) {
    const mha_schedule *const s = &e->schedule;
    const bool q = s->strategy == MHA_Q_LANES;
    if (e->has_tiles)
        printf("%*s%lld row%s for each KV head: %s\n", INDENT, "", (long long)e->tiles.rows,
               e->tiles.rows == 1 ? "" : "s",
               q ? "enough to fill vectors with rows" : "few, so that reading K and V once is what takes the time");
    const int score_rows = q ? s->score_row_vectors : s->score_rows;
    printf("%*sscores: %d x %d = %d accumulators and %d operands, of %d registers\n", INDENT, "", s->score_keys,
           score_rows, s->score_keys * score_rows, q ? score_rows + 1 : s->score_keys + 1,
           registers_of(e->machine.isa));
    if (q)
        printf("%*svalues: %d x %d = %d accumulators at most, by %s\n", INDENT, "", s->value_columns,
               s->value_row_vectors, s->value_columns * s->value_row_vectors,
               s->value_by == MHA_VALUE_BY_ROWS ? "rows" : "columns");
    else
        print_sums(s);
    if (s->gemm_rows)
        printf("%*sproducts: %d x %d = %d accumulators, %d rows in a task\n", INDENT, "", s->gemm_rows,
               s->gemm_column_vectors, s->gemm_rows * s->gemm_column_vectors, s->gemm_task_rows);
    if (!q || !e->has_tiles) return;
    print_waste("rows", e->tiles.rows, e->tiles.stripe);
    print_waste("keys", e->tiles.keys, s->score_keys);
}

static bool has_field(const char *list, const char *field, size_t length) {
    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (strcspn(list, ",") == length && !memcmp(list, field, length)) return true;
    return false;
}

/* Writes the fields in which a schedule differs from the chosen one, or its strategy if that does. */
static void write_difference(const char *chosen, const char *schedule, char text[DIFFERENCE_BYTES]) {
    bool is_strategy = false;
    *text = '\0';
    while (*schedule && !is_strategy) {
        const size_t length = strcspn(schedule, ",");
        if (!has_field(chosen, schedule, length)) {
            sprintf(text + strlen(text), "%s%.*s", *text ? ", " : "", (int)length, schedule);
            is_strategy = !strncmp(schedule, "strategy=", strlen("strategy="));
        }
        schedule += length + (schedule[length] == ',');
    }
}

/* Prints a text in lines that are not too long. */
static void print_wrapped(const char *text) {
    int at = printf("%*s", INDENT, "");
    while (*text) {
        const int length = (int)strcspn(text, " ");
        if (at > INDENT && at + 1 + length > WIDTH) at = printf("\n%*s", INDENT, "") - 1;
        at += printf("%s%.*s", at > INDENT ? " " : "", length, text);
        text += length + (text[length] == ' ');
    }
    printf("\n");
}

static void print_reasons(const explanation *e) {
    printf("\n%-*smeasurements that overruled the model (rows of src/schedule/corrections.def)\n", INDENT, "rules");
    for (size_t i = 0; i < e->num_reasons; i++) {
        const attune_reason *const r = &e->reasons[i];
        printf("%*s%s (line %d), factor %s:\n", INDENT, "", r->subject, r->line, r->factor);
        print_wrapped(r->evidence);
        if (!*r->schedule) continue;
        char difference[DIFFERENCE_BYTES], text[DIFFERENCE_BYTES + 80];
        write_difference(e->schedule_text, r->schedule, difference);
        snprintf(text, sizeof text, "without it: %s, for which the model expects %.3g times as many cycles", difference,
                 r->cost);
        print_wrapped(text);
    }
}

static void print_why(const explanation *e) {
    printf("\n%-*s", INDENT, "why");
    if (!e->has_model)
        printf(
            "this kernel is not attention, so there is nothing to choose; it uses only some numbers of the schedule\n");
    else if (e->has_schedule)
        printf("the caller set it\n");
    else if (e->is_kept)
        printf("the cached kernel has it; today another one would be chosen\n");
    else if (e->prediction.is_tuned)
        printf("it won when this problem, or one of nearly the same lengths, was tuned\n");
    else
        printf("attune's choice; neither this problem nor a similar one was tuned\n");
    if (e->has_model) print_attention(e);
    if (e->num_reasons) print_reasons(e);
}

static void print_model(const explanation *e) {
    const attune_prediction *const p = &e->prediction;
    const double all = explain_cycles(p);
    printf("\n%-*s%.3g cycles of one thread\n", INDENT, "model", all);
    print_share("scores", p->scores, all);
    print_share("softmax", p->softmax, all);
    print_share("values", p->values, all);
    print_share("tasks", p->tasks, all);
    print_share("products", p->products, all);
}

static void print_tasks(const task_report *r) {
    char number[TABLE_NUMBER_BYTES];
    printf("\n%-*sshared by %u threads", INDENT, "tasks", r->threads);
    if (r->cores && r->cores < r->threads) printf(", %u to an L3 cache", r->cores);
    printf(", %s\n",
           r->is_measured ? "with the measured time of each task" : "if all tasks of a phase take the same time");
    for (size_t p = 0; p < r->num_phases; p++) {
        const phase_tasks *const phase = &r->phases[p];
        printf("%*sphase %zu: %lld task%s, at most %lld for a thread, idle %.1f %%", INDENT, "", p + 1,
               (long long)phase->tasks, phase->tasks == 1 ? "" : "s", (long long)phase->most, 100 * phase->idle);
        if (r->is_measured) printf(", %s on one thread", table_time(phase->seconds * 1e6, number));
        printf("\n");
    }
    if (r->num_phases > 1 && r->has_idle) printf("%*sidle in all %.1f %%\n", INDENT, "", 100 * r->idle);
}

/* Three digits with a fitting prefix. */
static void print_scaled(double value, const char *unit) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    size_t i = 0;
    for (; value >= 999.5 && i + 1 < sizeof prefixes / sizeof *prefixes; i++) value /= 1000;
    printf("%.*f %s%s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, prefixes[i], unit);
}

static void print_measured(const explanation *e) {
    const bench_case *const b = &e->bench;
    char number[TABLE_NUMBER_BYTES];
    printf("\n%-*s", INDENT, "work");
    print_scaled(b->work.flops, "FLOP");
    printf(", ");
    print_scaled(b->work.bytes, "B");
    printf(" of tensors");
    if (b->work.pairs < b->work.all_pairs)
        printf("; queries attend to %.3g %% of the keys", 100 * b->work.pairs / b->work.all_pairs);
    printf("\n%-*s%.1f GFLOP/s in %s, %.1f GB/s read\n", INDENT, "peak", b->peak_gflops, tool_dtype_name(b->peak_dtype),
           b->bandwidth_gbs);
    printf("%-*s%s, bound by %s\n", INDENT, "roofline", table_time(b->work.flops / b->roofline_gflops * 1e-3, number),
           b->is_memory_bound ? "memory" : "compute");
    if (e->has_model) printf("%-*s%s\n", INDENT, "predicted", table_time(e->predicted_us, number));
    if (b->is_busy)
        printf("%-*s" BENCH_BUSY "; the fastest sample took %s", INDENT, "measured", table_time(b->min_us, number));
    else
        printf("%-*s%s: %.1f %% of the peak, %.1f %% of the roofline", INDENT, "measured",
               table_time(b->median_us, number), 100 * b->fraction, 100 * b->fraction_of_roofline);
    if (e->measured_threads < e->threads)
        printf("; on %u thread%s, as many as there are CPUs", e->measured_threads, e->measured_threads == 1 ? "" : "s");
    printf("\n");
}

enum { LOOPS_INDENT = 4 };

static void print_count(const char *heading, size_t value) { printf("  %*zu", (int)strlen(heading), value); }

static void print_loops(const explanation *e) {
    if (!e->num_loops) return;
    printf("\n%-*sthe innermost ones with most multiplications\n%*s%-8s  %-10s   all  accumulators", INDENT, "loops",
           LOOPS_INDENT, "", "", "");
    for (int c = 0; c < ASM_CLASSES; c++) printf("  %s", asm_class_name((asm_class)c));
    printf("\n");
    for (size_t i = 0; i < e->num_loops; i++) {
        const asm_loop *const loop = &e->loops[i];
        printf("%*s%-8s  %-10s %5zu", LOOPS_INDENT, "", *loop->name ? loop->name : "other", loop->function,
               loop->instructions);
        if (loop->accumulators)
            print_count("accumulators", loop->accumulators);
        else
            printf("  %*s", (int)strlen("accumulators"), "-");
        for (int c = 0; c < ASM_CLASSES; c++) print_count(asm_class_name((asm_class)c), loop->count[c]);
        printf("\n");
    }
}

void explain_print(const explanation *e) {
    print_list("problem", e->text);
    print_list("schedule", e->schedule_text);
    printf("%-*s%s, %s, %s, %u thread%s\n", INDENT, "machine", e->machine.cpu_description, e->machine.machine,
           e->machine.isa, e->threads, e->threads == 1 ? "" : "s");
    print_why(e);
    if (e->has_tiles) tile_print(&e->problem, &e->tiles, e->schedule.strategy == MHA_Q_LANES);
    if (e->has_model) print_model(e);
    if (e->threads > 1 && !e->lacks_code) print_tasks(&e->tasks);
    if (e->is_measured) print_measured(e);
    print_loops(e);
    if (e->lacks_code)
        printf("\n%-*swork, tasks, loops and times: there is no compiler, and no cache has the kernel%s%s\n", INDENT,
               "missing", *e->why_no_code ? ": " : "", e->why_no_code);
}
