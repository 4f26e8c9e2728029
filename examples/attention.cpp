// attention in C++11 and newer by attune.hpp: a whole sequence, then its last token alone, as a decoder computes it, on
// the same keys.
//     c++ attention.cpp $(pkg-config --cflags --libs attune) -o attention
#include <attune.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

static std::vector<float> numbers(std::size_t count, float step) {
    std::vector<float> made(count);
    for (std::size_t i = 0; i < count; i++) made[i] = std::sin(step * static_cast<float>(i));
    return made;
}

int main() {
    const int heads = 4, rows = 64, dim = 32;
    const std::vector<float> q = numbers(rows * heads * dim, 0.37f); // [row, head, column]
    std::vector<float> k = numbers(rows * heads * dim, 0.61f), v = numbers(rows * heads * dim, 0.23f);
    std::vector<float> out(rows * heads * dim), last(heads * dim);

    // Failures pass through: the last status is that of the first call that failed.
    attune::attention_desc desc;
    desc.num_heads = heads;
    desc.head_dim = dim;
    desc.is_causal = 1;
    desc.layout = ATTUNE_BSHD;
    const attune::result<attune::attention> attention = attune::attention::create(desc);
    attune::step step;
    step.batch = 1;
    step.seq_q = step.seq_kv = rows;
    step.q.data = q.data();
    step.k.data = k.data();
    step.v.data = v.data();
    step.out.data = out.data();
    attune::status status = attention->run(step);

    step.seq_q = 1;
    step.q.data = q.data() + (rows - 1) * heads * dim;
    step.out.data = last.data();
    if (status) status = attention->run(step);
    if (!status) {
        std::fprintf(stderr, "%s\n", status.message());
        return 1;
    }

    float difference = 0;
    for (int i = 0; i < heads * dim; i++)
        difference = std::fmax(difference, std::fabs(last[i] - out[(rows - 1) * heads * dim + i]));
    std::printf("the last row alone differs by %g\n", static_cast<double>(difference));
    return difference > 1e-5f;
}
