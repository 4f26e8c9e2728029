/* attune for C++11 and newer: attune.h with owners, spans and results.
 *
 * This header has no code of its own to link. Each class owns one object of attune.h, is moved and never copied, and
 * gives the object back when it ends. get() lends it, so every function of attune.h can be mixed in.
 *
 *     attune::attention_desc desc;
 *     desc.num_heads = 32, desc.num_kv_heads = 8, desc.head_dim = 128, desc.layout = ATTUNE_BHSD;
 *     attune::result<attune::attention> attention = attune::attention::create(desc);
 *     attune::step step;
 *     step.batch = 1, step.seq_q = step.seq_kv = 512;
 *     step.q.data = q, step.k.data = k, step.v.data = v, step.out.data = out;
 *     attune::status status = attention->run(step);
 *     if (!status) std::fprintf(stderr, "%s\n", status.message());
 *
 * The expert tier:
 *
 *     attune::result<attune::context> context = attune::context::create();
 *     attune::result<attune::problem> problem = attune::problem::parse("num_heads=12,seq_q=512,head_dim=64");
 *     attune::result<attune::kernel> kernel = context->compile(*problem);
 *     attune::arguments arguments = kernel->arguments();
 *     arguments.bind("q", q).bind("k", k).bind("v", v).bind("out", out);      // spans, vectors or arrays
 *     attune::status status = kernel->run(arguments);
 *
 * Errors: nothing here throws. A function returns a status, or a result that holds a status and, after success, a
 * value. Both are true after success. The value of a failed result is an empty owner that remembers the failure: calls
 * of it return the same status, and so does run() with arguments of it. arguments keeps the first failure of its bind()
 * and set() calls, too. So a chain of calls may be checked once, at its end. A problem remembers nothing: check what
 * parse() returns.
 *
 * With ATTUNE_EXCEPTIONS defined before the header is included, each failure throws attune::exception in place of being
 * returned. Files with and without it may be linked into one program. Without it the header needs neither exceptions
 * nor run-time type information (-fno-exceptions, -fno-rtti).
 *
 * Lifetimes are those of attune.h: a context must outlive its attentions, kernels, plans and blocks. Threads, too: any
 * number of threads may run one attention or kernel, each with a step or arguments of its own. */
#ifndef ATTUNE_HPP
#define ATTUNE_HPP

#include "attune.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#ifdef ATTUNE_EXCEPTIONS
#include <stdexcept>
#endif

namespace attune {
#ifdef ATTUNE_EXCEPTIONS
inline namespace throwing {
#else
inline namespace returning {
#endif

/* ---- Results ---- */

/* The outcome of a call. */
class status {
public:
    status() noexcept : code_(ATTUNE_OK) { message_[0] = 0; }

    /* A failure with a sentence of its own. */
    status(attune_status code, const char *message) noexcept : code_(code) {
        std::strncpy(message_, message, sizeof message_ - 1);
        message_[sizeof message_ - 1] = 0;
    }

    explicit operator bool() const noexcept { return code_ == ATTUNE_OK; }
    attune_status code() const noexcept { return code_; }
    const char *name() const noexcept { return attune_status_name(code_); }
    const char *message() const noexcept { return message_; } /* one sentence; "" after success */

private:
    attune_status code_;
    char message_[ATTUNE_MESSAGE_BYTES];
};

#ifdef ATTUNE_EXCEPTIONS
class exception : public std::runtime_error {
public:
    explicit exception(const status &failure) : std::runtime_error(failure.message()), code_(failure.code()) {}
    attune_status code() const noexcept { return code_; }

private:
    attune_status code_;
};
#endif

namespace detail {
/* A failure on its way to the caller. */
inline status failed(attune_status code, const char *message) {
    status failure(code, message);
#ifdef ATTUNE_EXCEPTIONS
    throw exception(failure);
#else
    return failure;
#endif
}

/* The outcome of the C function that has just been called on this thread. */
inline status of(attune_status code) { return code == ATTUNE_OK ? status() : failed(code, attune_last_message()); }

/* A value after a failure: an owner remembers it. */
template <typename T>
typename std::enable_if<std::is_constructible<T, const status &>::value, T>::type without(const status &failure) {
    return T(failure);
}
template <typename T>
typename std::enable_if<!std::is_constructible<T, const status &>::value, T>::type without(const status &) {
    return T();
}
} // namespace detail

/* A status, and after success a value. */
template <typename T> class result {
public:
    result(const attune::status &failure) : status_(failure), value_(detail::without<T>(failure)) {}
    result(T value) : status_(), value_(std::move(value)) {}

    explicit operator bool() const noexcept { return static_cast<bool>(status_); }
    const attune::status &status() const noexcept { return status_; }
    T &value() & noexcept { return value_; }
    const T &value() const & noexcept { return value_; }
    T &&value() && noexcept { return std::move(value_); }
    T &operator*() noexcept { return value_; }
    const T &operator*() const noexcept { return value_; }
    T *operator->() noexcept { return &value_; }
    const T *operator->() const noexcept { return &value_; }

private:
    attune::status status_;
    T value_;
};

/* ---- Data ---- */

/* Elements that lie one after the other, and belong to somebody else. */
template <typename T> class span {
public:
    span() noexcept : data_(nullptr), size_(0) {}
    span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <std::size_t count> span(T (&array)[count]) noexcept : data_(array), size_(count) {}
    /* Of a vector, an array, a std::span, and all that has data() and size(). */
    template <typename C, typename = typename std::enable_if<
                              std::is_convertible<decltype(std::declval<C &>().data()), T *>::value>::type>
    span(C &&container) noexcept : data_(container.data()), size_(container.size()) {}

    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t i) const noexcept { return data_[i]; }

private:
    T *data_;
    std::size_t size_;
};

/* Elements of two bytes, by their bits. */
struct f16 {
    std::uint16_t bits;
};
struct bf16 {
    std::uint16_t bits;
};
/* Codes of caches in fp8 (E4M3). */
struct f8 {
    std::uint8_t bits;
};

/* The element type of T. Specialise it for a 16-bit type of yours. */
template <typename T> struct dtype_of;
template <> struct dtype_of<float> : std::integral_constant<attune_dtype, ATTUNE_F32> {};
template <> struct dtype_of<double> : std::integral_constant<attune_dtype, ATTUNE_F64> {};
template <> struct dtype_of<f16> : std::integral_constant<attune_dtype, ATTUNE_F16> {};
template <> struct dtype_of<bf16> : std::integral_constant<attune_dtype, ATTUNE_BF16> {};
template <> struct dtype_of<f8> : std::integral_constant<attune_dtype, ATTUNE_F8> {};
template <> struct dtype_of<bool> : std::integral_constant<attune_dtype, ATTUNE_BOOL> {};
template <> struct dtype_of<std::int8_t> : std::integral_constant<attune_dtype, ATTUNE_I8> {};
template <> struct dtype_of<std::int32_t> : std::integral_constant<attune_dtype, ATTUNE_I32> {};

/* A tensor in memory of somebody else: elements, dims, and strides in elements (without them: row-major). */
template <typename T> class tensor {
public:
    enum { max_rank = 4 };

    tensor(span<T> elements, std::initializer_list<std::int64_t> dims) noexcept
        : elements_(elements), rank_(0), has_strides_(false) {
        for (std::int64_t dim : dims) dims_[rank_ < max_rank ? rank_ : 0] = dim, rank_++;
    }
    tensor(span<T> elements, std::initializer_list<std::int64_t> dims,
           std::initializer_list<std::int64_t> strides) noexcept
        : tensor(elements, dims) {
        has_strides_ = true;
        is_odd_ = strides.size() != dims.size();
        int i = 0;
        for (std::int64_t stride : strides) strides_[i < max_rank ? i : 0] = stride, i++;
    }

    T *data() const noexcept { return elements_.data(); }
    int rank() const noexcept { return rank_; }
    const std::int64_t *dims() const noexcept { return dims_; }
    const std::int64_t *strides() const noexcept { return has_strides_ ? strides_ : nullptr; }

    /* Whether rank, dims and strides make sense and all elements lie in the span. */
    bool is_inside() const noexcept {
        if (rank_ < 1 || rank_ > max_rank || is_odd_) return false;
        std::uint64_t last = 0, stride = 1;
        bool is_empty = false;
        for (int i = rank_ - 1; i >= 0; i--) {
            const std::int64_t step = has_strides_ ? strides_[i] : static_cast<std::int64_t>(stride);
            if (dims_[i] < 0 || step < 0 || dims_[i] > limit || step > limit) return false;
            is_empty = is_empty || dims_[i] == 0;
            if (dims_[i] > 1) {
                const std::uint64_t steps = static_cast<std::uint64_t>(dims_[i] - 1);
                if (static_cast<std::uint64_t>(step) > static_cast<std::uint64_t>(limit) / steps) return false;
                last += steps * static_cast<std::uint64_t>(step);
            }
            if (!has_strides_ && dims_[i] > 0) stride *= static_cast<std::uint64_t>(dims_[i]);
            if (stride > static_cast<std::uint64_t>(limit)) return false;
        }
        return is_empty || last < elements_.size();
    }

private:
    static constexpr std::int64_t limit = std::int64_t(1) << 40;
    span<T> elements_;
    int rank_;
    bool has_strides_, is_odd_ = false;
    std::int64_t dims_[max_rank], strides_[max_rank];
};

/* ---- Problems and options ---- */

/* attune_problem, initialised. Its members are fields. */
struct problem : attune_problem {
    problem() noexcept : attune_problem(attune_initial(attune_problem_init)) {}
    problem(const attune_problem &other) noexcept : attune_problem(other) {}

    /* Of text such as "num_heads=12,seq_q=512,head_dim=64". Not checked as a whole: check() does that. */
    static result<problem> parse(const char *text) {
        problem parsed;
        const attune::status read = detail::of(attune_problem_parse(&parsed, text));
        return read ? result<problem>(parsed) : result<problem>(read);
    }
    attune::status check() const { return detail::of(attune_problem_check(this)); }
    double flops() const noexcept { return attune_problem_flops(this); }
    std::string text() const {
        std::string text(attune_problem_print(this, nullptr, 0) + 1, '\0');
        text.resize(attune_problem_print(this, &text[0], text.size()));
        return text;
    }
};

struct context_options : attune_context_options {
    context_options() noexcept : attune_context_options(attune_initial(attune_context_options_init)) {}
};
struct run_options : attune_run_options {
    run_options() noexcept : attune_run_options(attune_initial(attune_run_options_init)) {}
};
struct plan_options : attune_plan_options {
    plan_options() noexcept : attune_plan_options(attune_initial(attune_plan_options_init)) {}
};

/* ---- Calls ---- */

/* The arguments of one call: attune_arguments, whose members may be set, too. bind() and set() return *this. The first
 * of them that fails is remembered, and run() returns its status. Lives no longer than its kernel, plan or block. */
class arguments : public attune_arguments {
public:
    arguments() noexcept
        : attune_arguments(), kernel_(nullptr), plan_(nullptr), failure_(), problem_(nullptr), has_memory_(false) {}

    /* Makes memory the argument `name`: q, k, v, out, lse, kv_lens, …, as attune_tensors lists them. A tensor has dims
     * of its own, and those that the problem leaves open become the call's. The elements of a span, a vector or an
     * array are contiguous in the dims of the argument, so sizes that the problem leaves open are set before. Memory
     * that is const fails where the call writes. */
    template <typename C> arguments &bind(const char *name, C &&memory) { return bind_one(name, memory); }

    /* Sets a size of the call by name: seq_q, seq_kv, batch, … Not after bind(), which compares sizes and memory. */
    arguments &set(const char *name, std::int64_t value) {
        if (!failure_) return *this;
        std::int64_t *const size = size_named(name);
        if (!size) return fail(name, "is no size of a call");
        if (has_memory_) return fail(name, "is set after a tensor is bound; set sizes first");
        *size = value;
        return *this;
    }

    const attune::status &status() const noexcept { return failure_; }

private:
    friend class kernel;
    friend class plan;
    friend class block;

    template <typename T> arguments &bind_one(const char *name, tensor<T> &x) { return bind_tensor(name, x); }
    template <typename T> arguments &bind_one(const char *name, const tensor<T> &x) { return bind_tensor(name, x); }
    template <typename T, std::size_t count> arguments &bind_one(const char *name, T (&array)[count]) {
        return bind_contiguous(name, span<T>(array, count));
    }
    template <typename C> arguments &bind_one(const char *name, C &container) {
        typedef typename std::remove_pointer<decltype(container.data())>::type T;
        return bind_contiguous(name, span<T>(container.data(), container.size()));
    }

    template <typename T> arguments &bind_tensor(const char *name, const tensor<T> &x) {
        typedef typename std::remove_const<T>::type element;
        if (!failure_) return *this;
        if (!x.is_inside()) return fail(name, "has dims or strides that do not fit its elements");
        if (std::is_const<T>::value && is_written(name)) return fail_const(name);
        return bind_memory(name, dtype_of<element>::value, const_cast<element *>(x.data()), x.rank(), x.dims(),
                           x.strides());
    }

    template <typename T> arguments &bind_contiguous(const char *name, span<T> elements) {
        if (!failure_) return *this;
        attune_tensor list[64];
        std::size_t count = 0;
        if (!problem_ || attune_tensors(problem_, this, list, 64, &count))
            return problem_ ? fail_as(attune_last_message()) : fail(name, "is bound to arguments of no kernel");
        for (std::size_t i = 0; i < count && i < 64; i++)
            if (!std::strcmp(list[i].name, name)) return bind_whole(list[i], elements);
        return fail(name, "is no tensor of this problem");
    }

    template <typename T> arguments &bind_whole(const attune_tensor &wanted, span<T> elements) {
        std::uint64_t size = 1;
        for (int i = 0; i < wanted.rank; i++) size *= static_cast<std::uint64_t>(wanted.dims[i]);
        if (size != elements.size()) return fail(wanted.name, "has another number of elements than the call needs");
        if (std::is_const<T>::value && wanted.is_output) return fail_const(wanted.name);
        return bind_memory(wanted.name, dtype_of<typename std::remove_const<T>::type>::value,
                           const_cast<typename std::remove_const<T>::type *>(elements.data()), wanted.rank,
                           wanted.dims, nullptr);
    }

    bool is_written(const char *name) const {
        attune_tensor list[64];
        std::size_t count = 0;
        if (!problem_ || attune_tensors(problem_, nullptr, list, 64, &count)) return false; /* binding it will fail */
        for (std::size_t i = 0; i < count && i < 64; i++)
            if (!std::strcmp(list[i].name, name)) return list[i].is_output != 0;
        return false;
    }

    arguments &bind_memory(const char *name, attune_dtype dtype, void *data, int rank, const std::int64_t *dims,
                           const std::int64_t *strides) {
        static const std::uint8_t codes[][2] = {{0, 0},  {2, 32}, {2, 16}, {4, 16}, {2, 64},
                                                {6, 8}, {0, 32}, {0, 8},  {10, 8}};
        attune_dltensor x = attune_dltensor();
        x.data = data;
        x.device_type = 1;
        x.ndim = rank;
        x.dtype_code = codes[dtype][0];
        x.dtype_bits = codes[dtype][1];
        x.dtype_lanes = 1;
        x.shape = const_cast<std::int64_t *>(dims);
        x.strides = const_cast<std::int64_t *>(strides);
        if (!kernel_ && !plan_) return fail(name, "is bound to arguments of no kernel");
        const attune_status code =
            plan_ ? attune_plan_bind(plan_, this, name, &x) : attune_bind_dlpack(this, kernel_, name, &x);
        has_memory_ = has_memory_ || code == ATTUNE_OK;
        return code == ATTUNE_OK ? *this : fail_as(attune_last_message());
    }

    arguments &fail_const(const char *name) { return fail(name, "is written by the call, and the memory is const"); }

    std::int64_t *size_named(const char *name) noexcept {
        const struct {
            const char *name;
            std::int64_t *size;
        } sizes[] = {{"batch", &batch},         {"num_heads", &num_heads},     {"num_kv_heads", &num_kv_heads},
                     {"seq_q", &seq_q},         {"seq_kv", &seq_kv},           {"seq_new", &seq_new},
                     {"num_rows", &num_rows},   {"total_q", &total_q},         {"total_kv", &total_kv},
                     {"num_ids", &num_ids},
                     {"num_pages", &num_pages}, {"max_pages", &max_pages},     {"mask_seq_kv", &mask_seq_kv},
                     {"bias_seq_kv", &bias_seq_kv}, {"rotary_positions", &rotary_positions}};
        for (const auto &entry : sizes)
            if (!std::strcmp(entry.name, name)) return entry.size;
        return nullptr;
    }

    arguments &fail_as(const attune::status &failure) {
        failure_ = failure;
        return *this;
    }
    arguments &fail_as(const char *message) { return fail_as(detail::failed(ATTUNE_INVALID_ARGUMENT, message)); }
    arguments &fail(const char *name, const char *what) {
        char text[ATTUNE_MESSAGE_BYTES];
        std::size_t length = 0;
        for (const char *part : {name, " ", what})
            for (const char *c = part; *c && length + 1 < sizeof text; c++) text[length++] = *c;
        text[length] = 0;
        return fail_as(text);
    }

    const attune_kernel *kernel_;
    const attune_plan *plan_;
    attune::status failure_;
    const attune_problem *problem_; /* of the kernel, plan or block */
    bool has_memory_;               /* a tensor is bound */
};

namespace detail {
/* Owns what close(context, handle) gives back. */
template <typename T, void (*close)(attune_context *, T *)> class owner {
public:
    owner() noexcept : context_(nullptr), handle_(nullptr) {}
    owner(attune_context *context, T *handle) noexcept : context_(context), handle_(handle) {}
    explicit owner(const status &failure) : context_(nullptr), handle_(nullptr), failure_(new status(failure)) {}
    owner(owner &&other) noexcept
        : context_(other.context_), handle_(other.release()), failure_(std::move(other.failure_)) {}
    owner &operator=(owner &&other) noexcept {
        if (this != &other) {
            if (handle_) close(context_, handle_);
            context_ = other.context_;
            handle_ = other.release();
            failure_ = std::move(other.failure_);
        }
        return *this;
    }
    ~owner() {
        if (handle_) close(context_, handle_);
    }
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;

    T *get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    attune_context *context() const noexcept { return context_; }
    /* Why it is empty: the failure that it comes from, or that there never was anything in it. */
    status why() const {
        return failure_ ? failed(failure_->code(), failure_->message())
                        : failed(ATTUNE_INVALID_ARGUMENT, "the object is empty");
    }
    /* Hands the object over to the caller. */
    T *release() noexcept {
        T *const handle = handle_;
        handle_ = nullptr;
        return handle;
    }

private:
    attune_context *context_;
    T *handle_;
    std::unique_ptr<status> failure_;
};

inline void close_context(attune_context *owned, attune_context *) { attune_context_destroy(owned); }
inline void close_kernel(attune_context *, attune_kernel *kernel) { attune_kernel_release(kernel); }
inline void close_block_mask(attune_context *, attune_block_mask *mask) { attune_block_mask_destroy(mask); }
inline void close_plan(attune_context *, attune_plan *plan) { attune_plan_destroy(plan); }
inline void close_block(attune_context *, attune_mha *block) { attune_mha_destroy(block); }
inline void close_attention(attune_context *, attune_attention *attention) { attune_attention_destroy(attention); }
inline void close_step_plan(attune_context *, attune_step_plan *plan) { attune_step_plan_destroy(plan); }
} // namespace detail

/* ---- Steps of an engine: attune/attention.h ---- */

/* What attention is, and one step of it, as initialised. Their members are those of C. */
struct attention_desc : attune_attention_desc {
    attention_desc() noexcept : attune_attention_desc(ATTUNE_ATTENTION_DESC_INIT) {}
};
struct step : attune_step {
    step() noexcept : attune_step(ATTUNE_STEP_INIT) {}
};

/* A step whose lengths and tables are checked and divided once, for all layers of a model. */
class step_plan {
public:
    step_plan() = default;
    explicit step_plan(const attune::status &failure) : owner_(failure) {} /* empty, and says why */

    attune::status run(const attune_step &step) const {
        return owner_ ? detail::of(attune_step_plan_run(owner_.get(), &step)) : owner_.why();
    }
    attune_step_plan *get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    friend class attention;
    explicit step_plan(attune_step_plan *handle) : owner_(nullptr, handle) {}
    detail::owner<attune_step_plan, detail::close_step_plan> owner_;
};

/* Attention, described once. It must outlive its plans. */
class attention {
public:
    attention() = default;
    explicit attention(const attune::status &failure) : owner_(failure) {} /* empty, and says why */

    /* context NULL: the one that all attentions without a context share. */
    static result<attention> create(const attune_attention_desc &desc, attune_context *context = nullptr) {
        attune_attention *handle = nullptr;
        const attune::status made = detail::of(attune_attention_create(context, &desc, &handle));
        return made ? result<attention>(attention(context, handle)) : result<attention>(made);
    }
    attune::status prepare() const {
        return owner_ ? detail::of(attune_attention_prepare(owner_.get())) : owner_.why();
    }
    attune::status run(const attune_step &step) const {
        return owner_ ? detail::of(attune_attention_run(owner_.get(), &step)) : owner_.why();
    }
    /* What its steps have run so far: compiled kernels, tier 0, the virtual machine. */
    result<attune_attention_info> info() const {
        attune_attention_info info = ATTUNE_ATTENTION_INFO_INIT;
        const attune::status told =
            owner_ ? detail::of(attune_attention_get_info(owner_.get(), &info)) : owner_.why();
        return told ? result<attune_attention_info>(info) : result<attune_attention_info>(told);
    }
    result<step_plan> plan(const attune_step &step) const {
        attune_step_plan *handle = nullptr;
        if (!owner_) return owner_.why();
        const attune::status made = detail::of(attune_step_plan_create(owner_.get(), &step, &handle));
        return made ? result<step_plan>(step_plan(handle)) : result<step_plan>(made);
    }
    attune_attention *get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    attention(attune_context *context, attune_attention *handle) : owner_(context, handle) {}
    detail::owner<attune_attention, detail::close_attention> owner_;
};

/* ---- What else is described once and runs steps: attune/linear.h, mla.h, index.h, blocks.h ---- */

struct linear_desc : attune_linear_desc {
    linear_desc() noexcept : attune_linear_desc(ATTUNE_LINEAR_DESC_INIT) {}
};
struct linear_step : attune_linear_step {
    linear_step() noexcept : attune_linear_step(ATTUNE_LINEAR_STEP_INIT) {}
};
struct conv_desc : attune_conv_desc {
    conv_desc() noexcept : attune_conv_desc(ATTUNE_CONV_DESC_INIT) {}
};
struct conv_step : attune_conv_step {
    conv_step() noexcept : attune_conv_step(ATTUNE_CONV_STEP_INIT) {}
};
struct mla_desc : attune_mla_desc {
    mla_desc() noexcept : attune_mla_desc(ATTUNE_MLA_DESC_INIT) {}
};
struct mla_weights : attune_mla_weights {
    mla_weights() noexcept : attune_mla_weights(ATTUNE_MLA_WEIGHTS_INIT) {}
};
struct mla_step : attune_mla_step {
    mla_step() noexcept : attune_mla_step(ATTUNE_MLA_STEP_INIT) {}
};
struct index_desc : attune_index_desc {
    index_desc() noexcept : attune_index_desc(ATTUNE_INDEX_DESC_INIT) {}
};
struct index_step : attune_index_step {
    index_step() noexcept : attune_index_step(ATTUNE_INDEX_STEP_INIT) {}
};
struct blocks_desc : attune_blocks_desc {
    blocks_desc() noexcept : attune_blocks_desc(ATTUNE_BLOCKS_DESC_INIT) {}
};
struct blocks_step : attune_blocks_step {
    blocks_step() noexcept : attune_blocks_step(ATTUNE_BLOCKS_STEP_INIT) {}
};

namespace detail {
template <typename T, void (*end)(T *)> void close_by(attune_context *, T *handle) { end(handle); }

/* `self` is the class that is derived from this one. */
template <typename self, typename T, typename S, attune_status (*go)(T *, const S *), void (*end)(T *)> class stepped {
public:
    attune::status run(const S &step) const {
        return owner_ ? detail::of(go(owner_.get(), &step)) : owner_.why();
    }
    T *get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

protected:
    stepped() = default;
    explicit stepped(const attune::status &failure) : owner_(failure) {}
    /* What a C function that makes one has returned. */
    static result<self> made(attune_status code, T *handle) {
        const attune::status outcome = detail::of(code);
        if (!outcome) return result<self>(outcome);
        self value;
        value.owner_ = owner<T, close_by<T, end>>(nullptr, handle);
        return result<self>(std::move(value));
    }
    /* The outcome of a C function on this object. */
    template <typename F> attune::status call(F function) const {
        return owner_ ? detail::of(function(owner_.get())) : owner_.why();
    }

private:
    owner<T, close_by<T, end>> owner_;
};
} // namespace detail

class linear : public detail::stepped<linear, attune_linear, attune_linear_step, attune_linear_run,
                                      attune_linear_destroy> {
public:
    linear() = default;
    explicit linear(const attune::status &failure) : stepped(failure) {} /* empty, and says why */
    static result<linear> create(const attune_linear_desc &desc, attune_context *context = nullptr) {
        attune_linear *handle = nullptr;
        const attune_status code = attune_linear_create(context, &desc, &handle);
        return made(code, handle);
    }
    attune::status prepare() const { return call(attune_linear_prepare); }
};

class conv : public detail::stepped<conv, attune_conv, attune_conv_step, attune_conv_run, attune_conv_destroy> {
public:
    conv() = default;
    explicit conv(const attune::status &failure) : stepped(failure) {}
    static result<conv> create(const attune_conv_desc &desc, attune_context *context = nullptr) {
        attune_conv *handle = nullptr;
        const attune_status code = attune_conv_create(context, &desc, &handle);
        return made(code, handle);
    }
};

class mla : public detail::stepped<mla, attune_mla, attune_mla_step, attune_mla_run, attune_mla_destroy> {
public:
    mla() = default;
    explicit mla(const attune::status &failure) : stepped(failure) {}
    static result<mla> create(const attune_mla_desc &desc, const attune_mla_weights &weights,
                              attune_context *context = nullptr) {
        attune_mla *handle = nullptr;
        const attune_status code = attune_mla_create(context, &desc, &weights, &handle);
        return made(code, handle);
    }
    attune::status prepare() const { return call(attune_mla_prepare); }
};

class index : public detail::stepped<index, attune_index, attune_index_step, attune_index_run, attune_index_destroy> {
public:
    index() = default;
    explicit index(const attune::status &failure) : stepped(failure) {}
    static result<index> create(const attune_index_desc &desc, attune_context *context = nullptr) {
        attune_index *handle = nullptr;
        const attune_status code = attune_index_create(context, &desc, &handle);
        return made(code, handle);
    }
    attune::status prepare() const { return call(attune_index_prepare); }
};

class blocks : public detail::stepped<blocks, attune_blocks, attune_blocks_step, attune_blocks_run,
                                      attune_blocks_destroy> {
public:
    blocks() = default;
    explicit blocks(const attune::status &failure) : stepped(failure) {}
    static result<blocks> create(const attune_blocks_desc &desc, attune_context *context = nullptr) {
        attune_blocks *handle = nullptr;
        const attune_status code = attune_blocks_create(context, &desc, &handle);
        return made(code, handle);
    }
    attune::status prepare(int64_t seq_kv) const {
        return call([seq_kv](attune_blocks *handle) { return attune_blocks_prepare(handle, seq_kv); });
    }
};

/* ---- Kernels, plans and blocks: attune/expert ---- */

/* What mask_mod hides, kept for calls that have it as arguments.block_mask: see attune_block_mask_create. */
class block_mask {
public:
    block_mask() = default;
    explicit block_mask(const attune::status &failure) : owner_(failure) {} /* empty, and says why */
    attune_block_mask *get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    friend class kernel;
    block_mask(attune_context *context, attune_block_mask *handle) : owner_(context, handle) {}
    detail::owner<attune_block_mask, detail::close_block_mask> owner_;
};

/* A compiled kernel, with its problem. */
class kernel {
public:
    kernel() = default;
    explicit kernel(const attune::status &failure) : owner_(failure) {} /* empty, and says why */

    /* Sizes and strides of the problem; pointers are not set. */
    attune::arguments arguments() const {
        attune::arguments fresh;
        if (!owner_) return fresh.fail_as(owner_.why());
        if (attune_arguments_init(&fresh, problem_.get())) return fresh.fail_as(attune_last_message());
        fresh.kernel_ = owner_.get();
        fresh.problem_ = problem_.get();
        return fresh;
    }
    attune::status run(const attune::arguments &call, const attune_run_options *options = nullptr) const {
        if (!call.status()) return call.status();
        if (!owner_) return owner_.why();
        if (call.kernel_ != owner_.get())
            return detail::failed(ATTUNE_INVALID_ARGUMENT, "the arguments are of another kernel");
        return detail::of(attune_run_with(owner_.context(), owner_.get(), &call, options));
    }
    result<block_mask> make_block_mask(const attune::arguments &call) const {
        attune_block_mask *handle = nullptr;
        if (!call.status()) return call.status();
        if (!owner_) return owner_.why();
        const attune::status made =
            detail::of(attune_block_mask_create(owner_.context(), owner_.get(), &call, &handle));
        return made ? result<block_mask>(block_mask(owner_.context(), handle)) : result<block_mask>(made);
    }
    attune_kernel *get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    friend class context;
    kernel(attune_context *context, attune_kernel *handle, const attune_problem &problem)
        : owner_(context, handle), problem_(new attune::problem(problem)) {}
    detail::owner<attune_kernel, detail::close_kernel> owner_;
    std::unique_ptr<attune::problem> problem_; /* arguments refer to it, wherever this moves */
};

/* Kernels for calls whose sizes vary: see attune_plan_create. */
class plan {
public:
    plan() = default;
    explicit plan(const attune::status &failure) : owner_(failure) {} /* empty, and says why */

    attune::arguments arguments() const {
        attune::arguments fresh;
        if (!owner_) return fresh.fail_as(owner_.why());
        if (attune_plan_arguments_init(owner_.get(), &fresh)) return fresh.fail_as(attune_last_message());
        fresh.plan_ = owner_.get();
        fresh.problem_ = problem_.get();
        return fresh;
    }
    attune::status run(const attune::arguments &call, const attune_run_options *options = nullptr) const {
        if (!call.status()) return call.status();
        if (!owner_) return owner_.why();
        if (call.plan_ != owner_.get())
            return detail::failed(ATTUNE_INVALID_ARGUMENT, "the arguments are of another plan");
        return detail::of(attune_plan_run(owner_.get(), &call, options));
    }
    attune_plan *get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    friend class context;
    plan(attune_context *context, attune_plan *handle, const attune_problem &problem)
        : owner_(context, handle), problem_(new attune::problem(problem)) {}
    detail::owner<attune_plan, detail::close_plan> owner_;
    std::unique_ptr<attune::problem> problem_; /* arguments refer to it, wherever this moves */
};

/* The weights of a block: attune_mha_weights. Spans must stay until the block is made. */
class weights : public attune_mha_weights {
public:
    weights(const attune_problem &problem, attune_weight_layout layout) : attune_mha_weights() {
        failure_ = detail::of(attune_mha_weights_init(this, &problem, layout));
    }
    template <typename C> weights &set(attune_weight_id id, const C &elements) {
        typedef typename std::remove_cv<typename std::remove_reference<decltype(*elements.data())>::type>::type T;
        attune_weight &one = tensor[id];
        std::uint64_t size = 1;
        for (int i = 0; i < one.rank; i++) size *= static_cast<std::uint64_t>(one.dims[i]);
        if (!failure_) return *this;
        if (!one.rank || size != elements.size() || one.dtype != dtype_of<T>::value) {
            failure_ = attune::status(ATTUNE_INVALID_ARGUMENT, attune_weight_name(id)); /* kept if this throws */
            std::string text = std::string(attune_weight_name(id)) + " has another type or number of elements than the "
                                                                     "block needs";
            failure_ = attune::status(ATTUNE_INVALID_ARGUMENT, text.c_str());
            detail::failed(ATTUNE_INVALID_ARGUMENT, text.c_str());
            return *this;
        }
        one.data = elements.data();
        return *this;
    }
    const attune::status &status() const noexcept { return failure_; }

private:
    attune::status failure_;
};

/* Attention and the projections around it, with packed weights. */
class block {
public:
    block() = default;
    explicit block(const attune::status &failure) : owner_(failure) {} /* empty, and says why */

    attune::arguments arguments() const {
        attune::arguments fresh;
        if (!owner_) return fresh.fail_as(owner_.why());
        if (attune_arguments_init(&fresh, problem_.get())) return fresh.fail_as(attune_last_message());
        fresh.kernel_ = attune_mha_kernel(owner_.get());
        fresh.problem_ = problem_.get();
        return fresh;
    }
    attune::status run(const attune::arguments &call, const attune_run_options *options = nullptr) const {
        if (!call.status()) return call.status();
        if (!owner_) return owner_.why();
        if (call.kernel_ != attune_mha_kernel(owner_.get()))
            return detail::failed(ATTUNE_INVALID_ARGUMENT, "the arguments are of another block");
        return detail::of(attune_mha_run(owner_.get(), &call, options));
    }
    attune_mha *get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    friend class context;
    block(attune_context *context, attune_mha *handle, const attune_problem &problem)
        : owner_(context, handle), problem_(new attune::problem(problem)) {}
    detail::owner<attune_mha, detail::close_block> owner_;
    std::unique_ptr<attune::problem> problem_; /* arguments refer to it, wherever this moves */
};

/* What compiles and runs: threads, and caches in memory and on disk. */
class context {
public:
    context() = default;
    explicit context(const attune::status &failure) : owner_(failure) {} /* empty, and says why */

    static result<context> create(const attune_context_options *options = nullptr) {
        attune_context *handle = nullptr;
        const attune::status made = detail::of(attune_context_create(options, &handle));
        return made ? result<context>(context(handle, handle)) : result<context>(made);
    }
    static result<context> create(const attune_context_options &options) { return create(&options); }
    /* That of objects created without one (attune_shared_context). It lives until the process ends. */
    static result<context> shared() {
        attune_context *handle = nullptr;
        const attune::status made = detail::of(attune_shared_context(&handle));
        return made ? result<context>(context(nullptr, handle)) : result<context>(made);
    }

    result<kernel> compile(const attune_problem &problem, const char *schedule = nullptr) const {
        attune_kernel *handle = nullptr;
        if (!owner_) return owner_.why();
        const attune::status made = detail::of(attune_compile(owner_.get(), &problem, schedule, &handle));
        return made ? result<kernel>(kernel(owner_.get(), handle, problem)) : result<kernel>(made);
    }
    result<plan> make_plan(const attune_problem &problem, const attune_plan_options *options = nullptr) const {
        attune_plan *handle = nullptr;
        if (!owner_) return owner_.why();
        const attune::status made = detail::of(attune_plan_create(owner_.get(), &problem, options, &handle));
        return made ? result<plan>(plan(owner_.get(), handle, problem)) : result<plan>(made);
    }
    result<block> make_block(const attune_problem &problem, const weights &weights) const {
        attune_mha *handle = nullptr;
        if (!owner_) return owner_.why();
        if (!weights.status()) return weights.status();
        const attune::status made = detail::of(attune_mha_create(owner_.get(), &problem, nullptr, &weights, &handle));
        return made ? result<block>(block(owner_.get(), handle, problem)) : result<block>(made);
    }
    attune_context *get() const noexcept { return owner_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(owner_); }

private:
    /* owned: what the destructor ends; NULL: nothing. */
    context(attune_context *owned, attune_context *handle) : owner_(owned, handle) {}
    detail::owner<attune_context, detail::close_context> owner_;
};

} // namespace
} // namespace attune

#endif
