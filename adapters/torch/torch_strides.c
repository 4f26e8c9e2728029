/* The strides that PyTorch gives a new tensor like another one, by the rules of at::infer_dense_strides. */
#include "torch_abi.h"

/* Sorts dims by stride, the smallest first, as at::infer_dense_strides does: a stride of 0 is not compared, and with
 * equal strides the smaller dim comes first. */
static int compare(const torch_view *view, int a, int b) {
    const int64_t stride_a = view->strides[a], stride_b = view->strides[b];
    if (!stride_a || !stride_b) return 0;
    if (stride_a != stride_b) return stride_a < stride_b ? -1 : 1;
    return view->sizes[a] > view->sizes[b];
}

static void sort(const torch_view *view, int order[TORCH_MAX_RANK]) {
    for (int i = 0; i < view->rank; i++) order[i] = view->rank - 1 - i;
    for (int i = 1; i < view->rank; i++) {
        int place = i;
        for (int before = i - 1; before >= 0; before--) {
            const int comparison = compare(view, order[before], order[place]);
            if (comparison < 0) break;
            if (comparison == 0) continue;
            const int dim = order[before];
            order[before] = order[place];
            order[place] = dim;
            place = before;
        }
    }
}

/* Whether the elements fill their memory without gaps or overlap. Dims of 1 may have any stride. */
static bool is_dense(const torch_view *view, int64_t elements) {
    bool done[TORCH_MAX_RANK] = {0};
    for (int64_t expected = 1; expected < elements;) {
        int next = 0;
        while (next < view->rank && (done[next] || view->sizes[next] < 2 || view->strides[next] != expected)) next++;
        if (next == view->rank) return false;
        done[next] = true;
        expected *= view->sizes[next];
    }
    return true;
}

void torch_strides_like(const torch_view *view, int64_t *strides) {
    int64_t elements = 1;
    for (int i = 0; i < view->rank; i++) elements *= view->sizes[i];
    if (is_dense(view, elements)) {
        for (int i = 0; i < view->rank; i++) strides[i] = view->strides[i];
        return;
    }
    int order[TORCH_MAX_RANK];
    sort(view, order);
    int64_t stride = 1;
    for (int i = 0; i < view->rank; i++) {
        strides[order[i]] = stride;
        stride *= view->sizes[order[i]];
    }
}
