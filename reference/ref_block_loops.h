/* The products of the reference of the block, included once for each REAL they compute in; no header of its own. */

/* A projection's weights as numbers: [outputs][inputs], and a bias for each output. */
typedef struct NAME(matrix) {
    REAL *weights, *bias;
    int64_t inputs, outputs;
} NAME(matrix);

static void NAME(free_matrix)(NAME(matrix) * m) {
    free(m->weights);
    free(m->bias);
}

static bool NAME(load_matrix)(const block *b, projection which, NAME(matrix) * m) {
    m->inputs = inputs_of(b, which);
    m->outputs = outputs_of(b, which);
    m->weights = malloc((size_t)(m->inputs * m->outputs) * sizeof(REAL));
    m->bias = calloc((size_t)m->outputs, sizeof(REAL));
    long double *const row = malloc((size_t)m->inputs * sizeof *row);
    const bool good = m->weights && m->bias && row;
    for (int64_t o = 0; good && o < m->outputs; o++) {
        m->bias[o] = (REAL)bias_at(b, which, o);
        load_weights(b, which, o, row);
        for (int64_t i = 0; i < m->inputs; i++) m->weights[o * m->inputs + i] = (REAL)row[i];
    }
    free(row);
    return good;
}

static void NAME(load_token)(REAL *row, const attune_tensor *t, const void *data, int64_t sequence, int64_t token) {
    const int64_t at = sequence * t->strides[0] + token * t->strides[1];
    for (int64_t i = 0; i < t->dims[2]; i++) row[i] = (REAL)ref_load(t->dtype, data, at + i * t->strides[2]);
}

/* An input of a projection as x_planes has it: codes times a scale for each group, in the problem's precision. Returns
 * the largest scale. */
static double NAME(round_row)(const block *b, REAL *row, int64_t count) {
    const attune_problem *const p = b->call->problem;
    const int64_t group = p->w_group ? p->w_group : 32;
    double largest = 0;
    for (int64_t first = 0; p->x_planes && first < count; first += group) {
        const int64_t end = count - first < group ? count : first + group;
        double most = 0;
        for (int64_t i = first; i < end; i++)
            most = isfinite(row[i]) && !isnan(most) ? fmax(most, fabs((double)row[i])) : (double)NAN;
        const double scale = in_precision(p, most / 127);
        for (int64_t i = first; i < end; i++)
            row[i] = (REAL)(scale > 0 ? scale * fmax(-127, fmin(127, rint(in_precision(p, (double)row[i] / scale))))
                                      : 0 * scale);
        largest = larger_finite(largest, scale);
    }
    return largest;
}

/* One output for one row; *terms: the largest sum of the additions' terms. */
static REAL NAME(multiply)(const NAME(matrix) * m, const REAL *row, int64_t o, double *terms) {
    const REAL *const column = m->weights + o * m->inputs;
    REAL sum = m->bias[o];
    double magnitude = fabs((double)sum);
    for (int64_t i = 0; i < m->inputs; i++) {
        const REAL product = row[i] * column[i];
        sum += product;
        magnitude += fabs((double)product);
    }
    *terms = larger_finite(*terms, magnitude);
    return sum;
}

/* All heads of all tokens of an input: `to` is [sequences, heads, tokens, columns]. */
static bool NAME(project)(const block *b, projection which, long double *to, double *loss) {
    const attune_tensor *const t = b->inputs[which];
    const int64_t columns = which == PROJECT_V ? b->dim_v : b->dim, tokens = t->dims[1];
    REAL *const row = malloc((size_t)t->dims[2] * sizeof *row);
    NAME(matrix) m = {0};
    double terms = 0;
    const bool good = row && NAME(load_matrix)(b, which, &m);
    for (int64_t sequence = 0; good && sequence < t->dims[0]; sequence++)
        for (int64_t token = 0; token < tokens; token++) {
            NAME(load_token)(row, t, data_of(b->call, t), sequence, token);
            NAME(round_row)(b, row, t->dims[2]);
            for (int64_t o = 0; o < m.outputs; o++) {
                const int64_t head = sequence * (m.outputs / columns) + o / columns;
                to[(head * tokens + token) * columns + o % columns] = NAME(multiply)(&m, row, o, &terms);
            }
        }
    *loss = loss_of(terms, m.inputs);
    NAME(free_matrix)(&m);
    free(row);
    return good;
}

/* Keys or values of each head, multiplied from the left by [low_rank, tokens]: from [sequences, kv_heads, tokens,
 * columns] to [sequences, kv_heads, low_rank, columns]. */
static void NAME(lower)(const block *b, const attune_tensor *low, const long double *from, int64_t columns,
                        long double *to, double *loss) {
    const int64_t tokens = low->dims[low->rank - 1], rank = low->dims[low->rank - 2];
    const void *const data = data_of(b->call, low);
    double terms = 0, gain = 0;
    for (int64_t head = 0; head < b->sequences * b->kv_heads; head++) {
        const int64_t begin = low->rank == 3 ? head % b->kv_heads * low->strides[0] : 0;
        for (int64_t r = 0; r < rank; r++)
            for (int64_t c = 0; c < columns; c++) {
                REAL sum = 0;
                double magnitude = 0, factors = 0;
                for (int64_t j = 0; j < tokens; j++) {
                    const int64_t at = begin + r * low->strides[low->rank - 2] + j * low->strides[low->rank - 1];
                    const REAL factor = (REAL)ref_load(low->dtype, data, at);
                    const REAL product = factor * (REAL)from[(head * tokens + j) * columns + c];
                    sum += product;
                    magnitude += fabs((double)product);
                    factors += fabs((double)factor);
                }
                terms = larger_finite(terms, magnitude);
                gain = larger_finite(gain, factors);
                to[(head * rank + r) * columns + c] = sum;
            }
    }
    *loss = gain * *loss + loss_of(terms, tokens);
}

/* Heads [sequences, heads, tokens, dim_v] to rows of `out`, for the tokens that a sequence owns. */
static bool NAME(put_together)(const block *b, const long double *heads, long double *out, ref_block_scale *scale) {
    NAME(matrix) m = {0};
    const int64_t tokens = b->tokens;
    REAL *const row = malloc((size_t)(b->heads * b->dim_v) * sizeof *row);
    double terms = 0, largest = 0;
    const bool good = row && NAME(load_matrix)(b, PROJECT_OUT, &m);
    for (int64_t at = 0; good && at < b->sequences * tokens; at++) {
        if (!is_owned(b, at)) continue;
        for (int64_t i = 0; i < m.inputs; i++) {
            const int64_t head = at / tokens * b->heads + i / b->dim_v;
            row[i] = (REAL)heads[(head * tokens + at % tokens) * b->dim_v + i % b->dim_v];
        }
        largest = larger_finite(largest, NAME(round_row)(b, row, m.inputs));
        for (int64_t o = 0; o < m.outputs; o++) out[at * m.outputs + o] = NAME(multiply)(&m, row, o, &terms);
    }
    for (int64_t o = 0; good && o < m.outputs; o++) {
        double gain = 0;
        for (int64_t i = 0; i < m.inputs; i++) gain += fabs((double)m.weights[o * m.inputs + i]);
        scale->out_gain = larger_finite(scale->out_gain, gain);
    }
    scale->out_loss = loss_of(terms, m.inputs) + lost_to_codes(b, largest, scale->out_gain, m.inputs);
    NAME(free_matrix)(&m);
    free(row);
    return good;
}

/* Projections for attention; then the output of it. */
static bool NAME(before)(block *b, ref_block_scale *scale) {
    if (!NAME(project)(b, PROJECT_Q, b->q, &scale->q_loss)) return false;
    if (b->k && !NAME(project)(b, PROJECT_K, b->k, &scale->k_loss)) return false;
    if (b->v && !NAME(project)(b, PROJECT_V, b->v, &scale->v_loss)) return false;
    if (!b->keys_low) return true;
    NAME(lower)(b, b->keys_low, b->k, b->dim, b->k_low, &scale->k_loss);
    if (b->v) NAME(lower)(b, b->values_low, b->v, b->dim_v, b->v_low, &scale->v_loss);
    return true;
}
