// attention in C++11 and newer by attune.hpp: a kernel for fixed lengths, and a plan for lengths that vary.
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
    const std::vector<float> q = numbers(heads * rows * dim, 0.37f), k = numbers(heads * rows * dim, 0.61f);
    const std::vector<float> v = numbers(heads * rows * dim, 0.23f);
    std::vector<float> out(heads * rows * dim), step(heads * dim);

    // Failures pass through: the last status is that of the first call that failed.
    attune::result<attune::context> context = attune::context::create();
    attune::problem problem;
    problem.num_heads = heads;
    problem.seq_q = rows;
    problem.head_dim = dim;
    problem.is_causal = 1;
    attune::result<attune::kernel> kernel = context->compile(problem);
    attune::arguments arguments = kernel->arguments();
    arguments.bind("q", q).bind("k", k).bind("v", v).bind("out", out);
    attune::status status = kernel->run(arguments);

    // The last row alone, as a decoder computes it: its dims become sizes of the call.
    problem.seq_q = problem.seq_kv = ATTUNE_DYNAMIC;
    problem.causal_align = ATTUNE_BOTTOM_RIGHT;
    attune::result<attune::plan> plan = context->make_plan(problem);
    const std::int64_t head = rows * dim;
    const attune::span<const float> last(q.data() + (rows - 1) * dim, q.size() - (rows - 1) * dim);
    arguments = plan->arguments();
    arguments.bind("q", attune::tensor<const float>(last, {1, heads, 1, dim}, {heads * head, head, dim, 1}));
    arguments.bind("k", attune::tensor<const float>(k, {1, heads, rows, dim}));
    arguments.bind("v", attune::tensor<const float>(v, {1, heads, rows, dim}));
    arguments.bind("out", attune::tensor<float>(step, {1, heads, 1, dim}));
    if (status) status = plan->run(arguments);
    if (!status) {
        std::fprintf(stderr, "%s\n", status.message());
        return 1;
    }

    float difference = 0;
    for (int h = 0; h < heads; h++)
        for (int d = 0; d < dim; d++)
            difference = std::fmax(difference, std::fabs(step[h * dim + d] - out[(h * rows + rows - 1) * dim + d]));
    std::printf("the last row alone differs by %g\n", static_cast<double>(difference));
    return difference > 1e-5f;
}
