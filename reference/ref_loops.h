/* The loops of the reference, included once for each REAL they compute in; no header of its own. */

/* A row as numbers. */
static void NAME(load_row)(REAL *row, const view *v, int64_t at, int64_t columns) {
    const attune_tensor *const t = v->tensor;
    const int64_t step = t->strides[t->rank - 1];
    for (int64_t c = 0; c < columns; c++) row[c] = (REAL)ref_load(t->dtype, v->data, at + c * step);
}

/* A key or value of a cache. */
static void NAME(load_scaled)(const reading *r, const sequence *e, const view *cache, const view *scale,
                              int64_t kv_head, int64_t j, REAL *row, int64_t columns) {
    const ref_format *const f = cache == &r->k || r->p->v_in_k ? &r->k_format : &r->v_format;
    const int64_t at = key_place(r, e, cache, kv_head, j);
    if (!ref_is_quantised(f->dtype) && !f->unit) NAME(load_row)(row, cache, at, columns);
    for (int64_t c = 0; f->unit && !ref_is_quantised(f->dtype) && c < columns; c++)
        row[c] = (REAL)ref_load(cache->tensor->dtype, cache->data, at + ref_column_place(f, c, 1));
    for (int64_t c = 0; ref_is_quantised(f->dtype) && c < columns; c++) {
        const REAL factor = (REAL)scale_of_column(r, e, f, cache, scale, kv_head, j, c);
        row[c] = (REAL)ref_code(f, cache->data, at, cache->tensor->strides[3], c) * factor;
        if (f->has_least) row[c] += (REAL)least_of_column(r, e, f, cache, scale, kv_head, j, c);
    }
}

/* Turns each pair of columns by the angle that the caches have for this position. */
static void NAME(rotate)(const reading *r, int64_t number, int64_t position, REAL *row) {
    const int64_t half = r->p->rotary_dim / 2;
    for (int64_t d = 0; d < half; d++) {
        const REAL c = (REAL)ref_load(r->cos.tensor->dtype, r->cos.data, place(r->cos.tensor, number, position, d, 0));
        const REAL s = (REAL)ref_load(r->sin.tensor->dtype, r->sin.data, place(r->sin.tensor, number, position, d, 0));
        REAL *const x = row + (r->p->rotary_interleaved ? 2 * d : d);
        REAL *const y = row + (r->p->rotary_interleaved ? 2 * d + 1 : d + half);
        const REAL turned = c * *x - s * *y;
        *y = s * *x + c * *y;
        *x = turned;
    }
}

/* A row of Q as the codes say that it is (integer=scores). */
static void NAME(code_query)(const reading *r, REAL *row) {
    const long double largest = r->p->q_planes == ATTUNE_Q_PLANES_1 ? 127 : 127 * 128;
    const coding as_query = {.is_double = r->is_double};
    long double range = 0;
    bool is_finite = true;
    for (int64_t c = 0; c < r->dim; c++) {
        is_finite = is_finite && isfinite(row[c]);
        range = fmax(range, fabs((long double)row[c]));
    }
    if (!is_finite) range = (long double)NAN;
    const long double scale = divided(&as_query, range, largest);
    const bool usable = scale > 0 && isfinite(scale);
    for (int64_t c = 0; c < r->dim; c++)
        row[c] = (REAL)((usable ? rint(fmax(-largest, fmin(largest, divided(&as_query, row[c], scale)))) : 0) * scale);
}

/* Whether K becomes codes in the call (integer=scores of keys that are numbers). */
static bool NAME(encodes_keys)(const reading *r) { return has_integers(r) && !ref_is_quantised(r->k_format.dtype); }

/* A row as its codes say that it is, all of it computed in f32. */
static void NAME(code_row)(const reading *r, REAL *row) {
    float range = 0;
    for (int64_t c = 0; c < r->dim; c++) range = isnan((float)row[c]) ? NAN : fmaxf(fabsf((float)row[c]), range);
    for (int64_t c = 0; c < r->dim; c++)
        if (!isfinite((float)row[c])) range = NAN;
    const float factor = 127 / range < INFINITY ? 127 / range : 0, scale = range / 127;
    for (int64_t c = 0; c < r->dim; c++) row[c] = (REAL)(rintf((float)row[c] * factor)) * (REAL)scale;
}

static float NAME(range_less)(const reading *r, const REAL *row, const REAL *mean) {
    float range = 0;
    for (int64_t c = 0; c < r->dim; c++) {
        const float x = fabsf((float)row[c] - (mean ? (float)mean[c] : 0));
        if (isnan(x) || isnan(range))
            range = NAN;
        else
            range = fmaxf(range, x);
    }
    return range;
}

/* The keys of a sequence become codes: those that have smaller numbers without the mean, without it. Their codes' sums
 * lack q · mean: takes[j] is 1 then, and else 0. */
static void NAME(code_keys)(const reading *r, const sequence *e, REAL *keys, REAL *mean, REAL *takes) {
    for (int64_t c = 0; c < r->dim; c++) {
        float sum = 0;
        for (int64_t j = 0; j < e->keys; j++) {
            const float x = (float)keys[j * r->dim + c];
            if (isfinite(x)) sum += x;
        }
        const float quotient = sum / (float)(e->keys > 0 ? e->keys : 1);
        mean[c] = isfinite(quotient) ? (REAL)quotient : 0;
    }
    for (int64_t j = 0; j < e->keys; j++) {
        REAL *const key = keys + j * r->dim;
        const float own = NAME(range_less)(r, key, NULL), less = NAME(range_less)(r, key, mean);
        takes[j] = less < own;
        for (int64_t c = 0; c < r->dim && takes[j] > 0; c++) key[c] = (REAL)((float)key[c] - (float)mean[c]);
        NAME(code_row)(r, key);
    }
}

/* Divides a row by the root of its mean square, and multiplies it by the weights. A mean beyond the arithmetic's range
 * is infinite. */
static void NAME(normalise)(const reading *r, const view *weights, REAL *row) {
    if (!weights->tensor) return;
    REAL squares = 0;
    for (int64_t c = 0; c < r->dim; c++) squares += row[c] * row[c];
    if (!r->is_double && squares > (REAL)FLT_MAX) squares = (REAL)INFINITY;
    const REAL root = sqrt(squares / (REAL)r->dim + (REAL)r->p->qk_norm_eps);
    for (int64_t c = 0; c < r->dim; c++)
        row[c] = row[c] / root * (REAL)ref_load(weights->tensor->dtype, weights->data, c * weights->tensor->strides[0]);
}

/* Multiplies a row by the normalised Hadamard matrix: its halves meet, then the halves of those. */
static void NAME(spread)(const reading *r, REAL *row) {
    const REAL root = sqrt((REAL)r->dim);
    if (!r->p->qk_hadamard) return;
    for (int64_t c = 0; c < r->dim; c++) row[c] /= root;
    for (int64_t half = r->dim / 2; half; half /= 2)
        for (int64_t c = 0; c < r->dim; c++) {
            if (c & half) continue;
            const REAL x = row[c], y = row[c + half];
            row[c] = x + y;
            row[c + half] = x - y;
        }
}

static void NAME(load_query)(const reading *r, const sequence *e, int64_t head, int64_t i, REAL *row) {
    NAME(load_row)(row, &r->q, place(r->q.tensor, e->q_batch, head, e->first_q + i, 0), r->dim);
    const int64_t position =
        r->position_ids.tensor ? integer_at(&r->position_ids, e->q_batch, e->first_q + i) : e->base + i;
    NAME(normalise)(r, &r->q_norm, row);
    if (r->p->rotary_dim) NAME(rotate)(r, e->number, position, row);
    NAME(spread)(r, row);
    for (int64_t c = 0; r->q_rounding && c < r->dim; c++) row[c] = (REAL)ref_rounded(r->q_rounding, row[c]);
    if (has_integers(r) && !NAME(encodes_keys)(r)) NAME(code_query)(r, row);
}

/* The scale of some columns, rounded as the cache stores it, and their minimum. */
static long double NAME(scale_of_run)(const coding *c, const REAL *row, int64_t columns, long double *smallest) {
    const long double first = c->format->has_least ? narrowed(c, row[0]) : 0;
    long double most = first, least = first;
    *smallest = (long double)NAN;
    for (int64_t i = 0; i < columns; i++) {
        if (!isfinite(narrowed(c, row[i]))) return (long double)NAN;
        most = fmax(most, narrowed(c, row[i]));
        least = fmin(least, narrowed(c, row[i]));
    }
    *smallest = as_stored(c, least);
    return scale_of_extremes(c, most, least);
}

/* A row that goes through a cache, which rounds to its type. */
static void NAME(append_row)(const reading *r, const sequence *e, coding row_coding, int64_t kv_head, int64_t j,
                             REAL *row, int64_t columns, long double *dense, long double *dense_scale) {
    const view *const cache = row_coding.cache, *const scale = row_coding.scale;
    row_coding.is_double = r->is_double;
    row_coding.taken_place = key_place(r, e, cache, kv_head, j);
    long double *const to = dense + dense_key_place(r, e, cache, kv_head, j);
    const ref_format *const f = row_coding.format;
    if (!ref_is_quantised(f->dtype)) {
        for (int64_t c = 0; c < columns; c++) to[ref_column_place(f, c, 1)] = row[c];
        for (int64_t c = 0; c < columns; c++) row[c] = (REAL)cached_number(&row_coding, row[c], c);
        return;
    }
    long double factor = 1, least = 0;
    const int64_t length = ref_run(f);
    for (int64_t c = 0; c < columns; c++) {
        if (c % length == 0) factor = NAME(scale_of_run)(&row_coding, row + c, length, &least);
        row_coding.least = least;
        if (f->is_inline) {
            row_coding.least = near_least(&row_coding, least, c);
            if (f->has_least) ref_put_inline_least(f, to, c, row_coding.least);
            factor = near_scale(&row_coding, factor, c);
            ref_put_inline_scale(f, to, c, factor);
        } else if (is_of_tokens(scale)) {
            long double *const scales = dense_scale + dense_key_place(r, e, scale, kv_head, j);
            scales[f->by_group ? c / length : 0] = factor;
            if (f->has_least) scales[ref_row_scales(f) + c / length] = least;
        } else {
            factor = scale_of_column(r, e, f, cache, scale, kv_head, j, c);
            row_coding.least = least_of_column(r, e, f, cache, scale, kv_head, j, c);
        }
        const long double code = encoded(&row_coding, row[c], c, factor);
        ref_put_code(f, to, c, code);
        row[c] = (REAL)code * (REAL)factor;
        if (f->has_least) row[c] += (REAL)row_coding.least;
    }
}

/* Key j as the scores see it. */
static void NAME(load_key)(const reading *r, const sequence *e, int64_t kv_head, int64_t j, REAL *row,
                           ref_result *result) {
    const int64_t n = j - (e->keys - e->fresh);
    const bool is_new = n >= 0 && j < e->keys;
    if (is_new)
        NAME(load_row)(row, &r->k_new, new_place(e, &r->k_new, kv_head, n), r->dim);
    else
        NAME(load_scaled)(r, e, &r->k, &r->k_scale, kv_head, j, row, r->dim);
    const bool is_raw = is_new || !has_finished_keys(r->p);
    if (is_raw) NAME(normalise)(r, &r->k_norm, row);
    if (r->p->rotary_dim && is_raw) {
        int64_t position = j;
        if (r->position_ids.tensor) position = integer_at(&r->position_ids, e->q_batch, e->first_q + (is_new ? n : j));
        NAME(rotate)(r, e->number, position, row);
    }
    if (is_raw) NAME(spread)(r, row);
    if (r->k_rounding)
        for (int64_t c = 0; c < r->dim; c++) row[c] = (REAL)ref_rounded(r->k_rounding, row[c]);
    const coding as_key = {
        .cache = &r->k, .scale = &r->k_scale, .format = &r->k_format, .taken = &r->k_taken, .error = r->k_error};
    if (is_new) NAME(append_row)(r, e, as_key, kv_head, j, row, r->dim, result->k, result->k_scale);
}

static void NAME(load_value)(const reading *r, const sequence *e, int64_t kv_head, int64_t j, const REAL *key,
                             REAL *row, ref_result *result) {
    const int64_t n = j - (e->keys - e->fresh);
    if (r->p->v_in_k) {
        for (int64_t c = 0; c < r->dim_v; c++) row[c] = key[c];
    } else if (n < 0) {
        NAME(load_scaled)(r, e, &r->v, &r->v_scale, kv_head, j, row, r->dim_v);
        if (r->v_rounding)
            for (int64_t c = 0; c < r->dim_v; c++) row[c] = (REAL)ref_rounded(r->v_rounding, row[c]);
    } else {
        NAME(load_row)(row, &r->v_new, new_place(e, &r->v_new, kv_head, n), r->dim_v);
        const coding as_value = {
            .cache = &r->v, .scale = &r->v_scale, .format = &r->v_format, .taken = &r->v_taken, .error = r->v_error};
        NAME(append_row)(r, e, as_value, kv_head, j, row, r->dim_v, result->v, result->v_scale);
    }
}

/* The score of q.k, up to the mask; `stage` is the weights mode after whose step to stop. */
static REAL NAME(score)(const reading *r, const sequence *e, int64_t head, int64_t i, int64_t j, REAL dot, int stage) {
    const REAL cap = (REAL)r->p->logits_soft_cap;
    REAL s = dot * (REAL)r->scale;
    if (stage == ATTUNE_WEIGHTS_SCALED) return s;
    if (cap > 0) s = cap * tanh(s / cap);
    if (stage == ATTUNE_WEIGHTS_CAPPED) return s;
    if (is_hidden(r, e, head, i, j)) return -(REAL)INFINITY;
    if (r->slopes.tensor) {
        const int64_t distance = e->base + i - j;
        s -= (REAL)ref_load(r->slopes.tensor->dtype, r->slopes.data, place(r->slopes.tensor, head, 0, 0, 0)) *
             (REAL)(distance < 0 ? -distance : distance);
    }
    if (r->bias.tensor)
        s += (REAL)ref_load(r->bias.tensor->dtype, r->bias.data, place(r->bias.tensor, e->number, head, i, j));
    if (r->p->score_mod[0]) {
        const ref_place at = function_place(r, e, head, i, j);
        s = (REAL)ref_modified(&at, s);
        if (isfinite(s)) *r->largest_modified = fmax(*r->largest_modified, fabs((double)s));
    }
    return s;
}

/* Inputs and outputs of one row of a head. */
typedef struct NAME(row) {
    REAL *query, *dots, *scores, *shares; /* products, scores and exponentials of all keys */
    REAL *totals;                         /* of the values, for each column */
    REAL largest, sum;                    /* of the scores; of the exponentials of their differences to it */
    REAL sink_share;                      /* what the sink adds to the sum */
    REAL empty_lse;                       /* the logarithm, if is_empty */
    bool is_empty;                        /* no key has a score above -infinity, and no finite sink */
    bool loses_key;                       /* one has no better, though nothing hides it */
} NAME(row);

static void NAME(softmax)(const reading *r, const sequence *e, int64_t head, int64_t i, NAME(row) * row) {
    REAL largest = -(REAL)INFINITY, sum = 0;
    bool sees = false;
    row->loses_key = false;
    row->empty_lse = -(REAL)INFINITY;
    for (int64_t j = 0; j < e->keys; j++) {
        const REAL s = NAME(score)(r, e, head, i, j, row->dots[j], ATTUNE_WEIGHTS_MASKED);
        row->scores[j] = s;
        if (s == -(REAL)INFINITY && !row->loses_key) row->loses_key = !is_hidden(r, e, head, i, j);
        sees = sees || s != -(REAL)INFINITY;
        largest = s > largest || isnan(s) ? s : largest;
    }
    if (r->sinks.tensor) {
        const REAL sink = (REAL)ref_load(r->sinks.tensor->dtype, r->sinks.data, place(r->sinks.tensor, head, 0, 0, 0));
        const bool is_usual = sink < (REAL)INFINITY;
        if (!is_usual) row->empty_lse = sum = sink;
        sees = sees || (is_usual && sink != -(REAL)INFINITY);
        largest = is_usual && sink > largest ? sink : largest;
        if (is_usual && sees) sum = exp(sink - largest);
    }
    row->sink_share = sum;
    for (int64_t j = 0; j < e->keys && sees; j++) sum += row->shares[j] = exp(row->scores[j] - largest);
    row->largest = largest;
    row->sum = sum;
    row->is_empty = !sees;
}

/* Codes of what a tile's keys weigh, in place of it; most: the largest of that. */
static REAL NAME(code)(REAL x, REAL most, REAL largest) { return rint(x / most * largest) * (most / largest); }

/* Scales of tokens are a part of a share's code. Those of new keys are not yet in the call's tensor. */
static REAL NAME(scale_in_share)(const reading *r, const sequence *e, int64_t kv_head, int64_t j,
                                 const ref_result *result) {
    const long double *const fresh = r->p->v_in_k ? result->k_scale : result->v_scale;
    if (!is_of_tokens(&r->v_scale)) return 1;
    if (j < e->keys - e->fresh) return (REAL)scale_of_key(r, e, &r->v_scale, kv_head, j);
    return (REAL)fresh[dense_key_place(r, e, &r->v_scale, kv_head, j)];
}

/* Exponentials as codes relative to the largest of a tile's (integer=all), in the sum as well. */
static void NAME(code_shares)(const reading *r, const sequence *e, int64_t kv_head, NAME(row) * row,
                              const ref_result *result) {
    enum { TILE = 512 };
    const REAL largest = r->p->q_planes == ATTUNE_Q_PLANES_1 ? 255 : 65535;
    row->sum = row->sink_share;
    for (int64_t first = 0; first < e->keys; first += TILE) {
        const int64_t end = first + TILE < e->keys ? first + TILE : e->keys;
        REAL most = 0, heaviest = 0;
        for (int64_t j = first; j < end; j++) {
            const REAL scale = NAME(scale_in_share)(r, e, kv_head, j, result);
            most = fmax(most, row->shares[j]);
            heaviest = fmax(heaviest, row->shares[j] == 0 ? 0 : row->shares[j] * scale);
        }
        for (int64_t j = first; j < end && most > 0; j++) {
            const REAL scale = NAME(scale_in_share)(r, e, kv_head, j, result);
            row->sum += NAME(code)(row->shares[j], most, largest);
            if (scale > 0) row->shares[j] = NAME(code)(row->shares[j] * scale, heaviest, largest) / scale;
        }
    }
}

/* prob_mod of a probability that is divided by its sum. */
static REAL NAME(modified_share)(const reading *r, const sequence *e, int64_t head, int64_t i, int64_t j,
                                 const NAME(row) * row) {
    const ref_place at = function_place(r, e, head, i, j);
    return (REAL)ref_modified_prob(&at, row->is_empty ? 0 : row->shares[j] / row->sum);
}

static void NAME(mix_modified)(const reading *r, const sequence *e, int64_t head, int64_t i, const NAME(row) * row,
                               const REAL *values, long double *out) {
    double mixed = 0;
    for (int64_t c = 0; c < r->dim_v; c++) row->totals[c] = 0;
    for (int64_t j = 0; j < e->keys; j++) {
        if (is_hidden(r, e, head, i, j)) continue;
        const REAL share = NAME(modified_share)(r, e, head, i, j, row);
        if (isfinite(share)) mixed += fabs((double)share);
        for (int64_t c = 0; c < r->dim_v; c++) row->totals[c] += share * values[j * r->dim_v + c];
    }
    *r->most_mixed = fmax(*r->most_mixed, mixed);
    for (int64_t c = 0; c < r->dim_v; c++) out[c] = row->totals[c];
}

/* The sum of the values of all keys that are not hidden: those take no part, whatever they hold. */
static void NAME(mix_values)(const reading *r, const sequence *e, int64_t head, int64_t i, const NAME(row) * row,
                             const REAL *values, long double *out) {
    for (int64_t c = 0; c < r->dim_v; c++) row->totals[c] = 0;
    for (int64_t j = 0; j < e->keys && !row->is_empty; j++) {
        if (row->scores[j] == -(REAL)INFINITY && is_hidden(r, e, head, i, j)) continue;
        const REAL share = r->p_rounding ? (REAL)ref_rounded(r->p_rounding, row->shares[j]) : row->shares[j];
        for (int64_t c = 0; c < r->dim_v; c++) row->totals[c] += share * values[j * r->dim_v + c];
    }
    for (int64_t c = 0; c < r->dim_v; c++) out[c] = row->is_empty ? 0 : row->totals[c] / row->sum;
}

static REAL NAME(weight)(const reading *r, const sequence *e, int64_t head, int64_t i, int64_t j, const NAME(row) * row,
                         REAL lse) {
    const int mode = (int)r->p->weights_mode;
    if (mode && mode != ATTUNE_WEIGHTS_SOFTMAX) return NAME(score)(r, e, head, i, j, row->dots[j], mode);
    if (is_hidden(r, e, head, i, j) || row->is_empty) return 0;
    if (r->p->op != ATTUNE_WEIGHTS) return row->shares[j] / row->sum;
    /* An lse of -infinity is that of a row without keys, whatever keys this row sees. */
    return lse == -(REAL)INFINITY ? 0 : exp(row->scores[j] - lse);
}

/* One row of weights, which lies in row `to` of its tensor; heads are summed where their mean is wanted. */
static void NAME(put_weights)(const reading *r, const sequence *e, int64_t head, int64_t i, int64_t to,
                              const NAME(row) * row, REAL lse, long double *weights) {
    const attune_tensor *const t = r->weights.tensor;
    const bool averages = r->p->weights_average;
    long double *const at = weights + dense_place(t, e->number, averages ? 0 : head, to, 0);
    for (int64_t j = 0; j < t->dims[3]; j++) {
        const REAL w = NAME(weight)(r, e, head, i, j, row, lse);
        if (!averages)
            at[j] = w;
        else
            at[j] = (head ? (REAL)at[j] : 0) + w;
        if (averages && head == r->heads - 1) at[j] = (REAL)at[j] / (REAL)r->heads;
    }
}

static void NAME(finish_row)(const reading *r, const sequence *e, int64_t head, int64_t i, const NAME(row) * row,
                             const REAL *values, ref_result *result) {
    const REAL lse = row->is_empty ? row->empty_lse : row->largest + log(row->sum);
    const int64_t token = e->first_q + i;
    long double *const out = result->out ? result->out + dense_place(r->out.tensor, e->q_batch, head, token, 0) : NULL;
    if (out && r->p->prob_mod[0])
        NAME(mix_modified)(r, e, head, i, row, values, out);
    else if (out)
        NAME(mix_values)(r, e, head, i, row, values, out);
    const int64_t number = dense_place(r->q.tensor, e->q_batch, head, token, 0) / r->dim;
    result->row_lse[number] = lse;
    result->loses_key[number] = row->loses_key;
    if (result->lse) result->lse[dense_place(r->lse.tensor, e->q_batch, head, token, 0)] = lse;
    if (!result->weights) return;
    REAL given = lse;
    if (r->p->op == ATTUNE_WEIGHTS && r->lse.tensor)
        given = (REAL)ref_load(r->lse.tensor->dtype, r->lse.data, place(r->lse.tensor, e->q_batch, head, token, 0));
    if (!r->row_ids.tensor) NAME(put_weights)(r, e, head, i, i, row, given, result->weights);
    for (int64_t n = 0; r->row_ids.tensor && n < r->row_ids.tensor->dims[0]; n++)
        if (integer_at(&r->row_ids, n, 0) == i) NAME(put_weights)(r, e, head, i, n, row, given, result->weights);
}

/* A row whose keys are those of a list: they count by their places in it. */
static void NAME(attend_to_list)(const reading *r, const sequence *e, int64_t head, int64_t i, NAME(row) * row,
                                 const REAL *keys, const REAL *values, REAL *listed, ref_result *result) {
    sequence as_list = *e;
    as_list.keys = listed_keys(r, e, i);
    as_list.fresh = 0;
    for (int64_t n = 0; n < as_list.keys; n++) {
        const int64_t j = listed_key(r, e, i, n);
        row->dots[n] = 0;
        for (int64_t c = 0; c < r->dim; c++) row->dots[n] += row->query[c] * keys[j * r->dim + c];
        for (int64_t c = 0; c < r->dim_v; c++) listed[n * r->dim_v + c] = values[j * r->dim_v + c];
    }
    NAME(softmax)(r, &as_list, head, i, row);
    NAME(finish_row)(r, &as_list, head, i, row, listed, result);
}

/* All rows of all heads that share one head of K and V. */
static void NAME(attend)(const reading *r, const sequence *e, int64_t kv_head, REAL *const buffers[NUM_BUFFERS],
                         ref_result *result) {
    REAL *const keys = buffers[0], *const values = buffers[1], *const mean = buffers[7], *const takes = buffers[8];
    NAME(row)
    row = {.query = buffers[2], .dots = buffers[3], .scores = buffers[4], .shares = buffers[5], .totals = buffers[6]};
    /* Scores of hidden keys are weights like any other in some modes, and only then exist beyond the sequence's keys:
     * where there are such keys, as stored. Elsewhere their products count as 0. */
    const bool has_more = result->weights && has_more_keys(r->p);
    const int64_t scored = has_more ? r->weights.tensor->dims[3] : e->keys;
    for (int64_t j = scored; result->weights && j < r->weights.tensor->dims[3]; j++) row.dots[j] = 0;
    for (int64_t j = 0; j < scored; j++) {
        NAME(load_key)(r, e, kv_head, j, keys + j * r->dim, result);
        if (result->out && j < e->keys)
            NAME(load_value)(r, e, kv_head, j, keys + j * r->dim, values + j * r->dim_v, result);
    }
    if (NAME(encodes_keys)(r)) NAME(code_keys)(r, e, keys, mean, takes);
    for (int64_t head = kv_head * r->group; head < (kv_head + 1) * r->group; head++)
        for (int64_t i = 0; i < e->rows; i++) {
            REAL of_mean = 0;
            NAME(load_query)(r, e, head, i, row.query);
            for (int64_t c = 0; c < r->dim && NAME(encodes_keys)(r); c++) of_mean += row.query[c] * mean[c];
            if (NAME(encodes_keys)(r)) NAME(code_row)(r, row.query);
            if (r->kv_ids.tensor) {
                NAME(attend_to_list)(r, e, head, i, &row, keys, values, buffers[9], result);
                continue;
            }
            for (int64_t j = 0; j < scored; j++) {
                REAL dot = NAME(encodes_keys)(r) && takes[j] > 0 ? of_mean : 0;
                for (int64_t c = 0; c < r->dim; c++) dot += row.query[c] * keys[j * r->dim + c];
                row.dots[j] = dot;
            }
            NAME(softmax)(r, e, head, i, &row);
            if (r->codes_shares && !row.is_empty) NAME(code_shares)(r, e, kv_head, &row, result);
            NAME(finish_row)(r, e, head, i, &row, values, result);
        }
}

static void NAME(rotary_op)(const reading *r, const sequence *e, REAL *row, ref_result *result) {
    for (int64_t head = 0; head < r->heads; head++)
        for (int64_t i = 0; i < e->rows; i++) {
            NAME(load_query)(r, e, head, i, row);
            long double *const out = result->out + dense_place(r->out.tensor, e->q_batch, head, e->first_q + i, 0);
            for (int64_t c = 0; c < r->dim; c++) out[c] = row[c];
        }
}

static void NAME(merge_op)(const reading *r, int64_t batch, ref_result *result) {
    const attune_tensor *const parts = r->parts.tensor, *const lses = r->parts_lse.tensor;
    for (int64_t row = 0; row < batch * r->heads * r->seq_q; row++) {
        REAL largest = -(REAL)INFINITY, sum = 0;
        for (int64_t n = 0; n < lses->dims[0]; n++) {
            const REAL lse = (REAL)ref_load(lses->dtype, r->parts_lse.data, place(lses, n, row, 0, 0));
            largest = lse > largest || isnan(lse) ? lse : largest;
        }
        const bool is_empty = largest == -(REAL)INFINITY;
        for (int64_t c = 0; c < r->dim_v; c++) {
            REAL total = 0;
            sum = 0;
            for (int64_t n = 0; n < lses->dims[0] && !is_empty; n++) {
                const REAL lse = (REAL)ref_load(lses->dtype, r->parts_lse.data, place(lses, n, row, 0, 0));
                const REAL weight = exp(lse - largest);
                sum += weight;
                if (lse != -(REAL)INFINITY)
                    total += weight * (REAL)ref_load(parts->dtype, r->parts.data, place(parts, n, row, c, 0));
            }
            result->out[row * r->dim_v + c] = is_empty ? 0 : total / sum;
        }
        if (result->lse) result->lse[row] = is_empty ? -(REAL)INFINITY : largest + log(sum);
    }
}

static bool NAME(compute)(const reading *r, int64_t batch, ref_result *result) {
    if (r->p->op == ATTUNE_MERGE) {
        NAME(merge_op)(r, batch, result);
        return true;
    }
    int64_t most = 1;
    if (result->weights) most = r->weights.tensor->dims[3] > most ? r->weights.tensor->dims[3] : most;
    for (int64_t b = 0; b < batch && r->p->op != ATTUNE_ROTARY; b++) {
        const int64_t keys = open_sequence(r, b).keys;
        most = keys > most ? keys : most;
    }
    const int64_t listed = r->kv_ids.tensor ? r->kv_ids.tensor->dims[2] : 0, scored = listed > most ? listed : most;
    const int64_t counts[NUM_BUFFERS] = {most * r->dim, most * r->dim_v, r->dim, scored, scored,
                                         scored,        r->dim_v,        r->dim, most,   listed * r->dim_v};
    REAL *buffers[NUM_BUFFERS];
    bool good = true;
    for (int n = 0; n < NUM_BUFFERS; n++) good = (buffers[n] = calloc((size_t)counts[n], sizeof(REAL))) != NULL && good;
    for (int64_t b = 0; b < batch && good; b++) {
        const sequence e = open_sequence(r, b);
        if (r->p->op == ATTUNE_ROTARY) {
            NAME(rotary_op)(r, &e, buffers[2], result);
            continue;
        }
        for (int64_t kv_head = 0; kv_head * r->group < r->heads; kv_head++)
            NAME(attend)(r, &e, kv_head, buffers, result);
    }
    for (int n = 0; n < NUM_BUFFERS; n++) free(buffers[n]);
    return good;
}
