/* Measures again, a few times at most, and keeps the measurement whose samples were nearest to each other. */
#include "sweep/sweep_noise.h"

#include "common/tool.h"

static double spread_of(const json_t *result) { return json_number_value(json_object_get(result, "spread")); }

static json_int_t measurements_of(const json_t *result) {
    return json_integer_value(json_object_get(result, "measurements"));
}

bool sweep_is_noisy(const json_t *result, double max_spread) {
    return spread_of(result) > max_spread && measurements_of(result) < SWEEP_MOST_MEASUREMENTS;
}

json_t *sweep_measure_quietly(sweep_measure_fn *measure, void *user, const json_t *before, double max_spread) {
    json_t *best = before ? json_deep_copy(before) : measure(user);
    json_int_t count = before ? measurements_of(before) : 1;
    while (best && count < SWEEP_MOST_MEASUREMENTS && spread_of(best) > max_spread) {
        json_t *const again = measure(user);
        if (!again) break;
        count++;
        const bool is_quieter = spread_of(again) < spread_of(best);
        json_decref(is_quieter ? best : again);
        if (is_quieter) best = again;
    }
    if (!best || json_object_set_new(best, "measurements", json_integer(count)) == 0) return best;
    tool_error("out of memory");
    json_decref(best);
    return NULL;
}
