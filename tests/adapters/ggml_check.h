/* The plug-in in the host of ggml_host.h, case by case, for tests by cmocka. */
#ifndef ATTUNE_TEST_GGML_CHECK_H
#define ATTUNE_TEST_GGML_CHECK_H

#include "ggml_host.h"

ggml_reg *ggml_backend_init(void); /* the plug-in's */

/* Masks of fake_case.sees and .bias. Row r is at key r + c->at. */
bool sees_past(const fake_case *c, int64_t stream, int64_t row, int64_t key);
/* A prompt of one sequence, and a token of each of three others. Their first 120 keys alternate. */
bool sees_mixed_step(const fake_case *c, int64_t stream, int64_t row, int64_t key);
uint16_t distance(const fake_case *c, int64_t head, int64_t row, int64_t key); /* of ALiBi */

/* Loads the plug-in anew. */
ggml_device *open_device(void);
ggml_backend *open_backend(void);
void set_threads(ggml_backend *backend, int threads);

/* A graph of one node. */
int compute(ggml_backend *backend, ggml_tensor *node);

bool has_logged(const char *text);

/* attune computes the case, as f64 does. */
void check_case(ggml_backend *backend, const fake_case *c, const char *name);

/* The same by a backend of its own, whose log has `kernel`. */
void check(const fake_case *c, const char *name, const char *kernel);

#endif
