/* Tables of key blocks (one element for each pair of blocks), made from lists of key blocks. */
#include "base/error.h"
#include "base/fpenv.h"
#include "engine/own_operator.h"

#include <string.h>

static attune_status check_table(int64_t rows, int64_t columns, const uint8_t *table, at_error *err) {
    if (at_check_size("rows", rows, 0, INT32_MAX, err) || at_check_size("columns", columns, 0, INT32_MAX, err))
        return err->status;
    if (rows && columns && !table) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "table is NULL");
    return ATTUNE_OK;
}

static attune_status check_number(const char *name, int64_t place, int32_t number, int64_t columns, at_error *err) {
    if (number >= 0 && number < columns) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s[%lld] is the key block %d; it must be at least 0 and below %lld",
                   name, (long long)place, number, (long long)columns);
}

static attune_status from_lists(const int32_t *lists, int64_t rows, int64_t places, int64_t columns, uint8_t *table,
                                at_error *err) {
    if (check_table(rows, columns, table, err) || at_check_size("places", places, 0, INT32_MAX, err))
        return err->status;
    if (rows && places && !lists) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "lists is NULL");
    for (int64_t i = 0; i < rows * places; i++)
        if (lists[i] != -1 && check_number("lists", i, lists[i], columns, err)) return err->status;
    if (rows && columns) memset(table, 0, (size_t)(rows * columns));
    for (int64_t i = 0; i < rows * places; i++)
        if (lists[i] != -1) table[i / places * columns + lists[i]] = 1;
    return ATTUNE_OK;
}

static attune_status from_csr(const int32_t *indptr, const int32_t *indices, int64_t rows, int64_t columns,
                              uint8_t *table, at_error *err) {
    if (check_table(rows, columns, table, err)) return err->status;
    if (!indptr) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "indptr is NULL");
    if (indptr[0]) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "indptr[0] is %d; it must rise from 0", indptr[0]);
    for (int64_t r = 0; r < rows; r++)
        if (indptr[r + 1] < indptr[r])
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "indptr[%lld] is %d and indptr[%lld] %d; it must rise from 0",
                           (long long)r, indptr[r], (long long)r + 1, indptr[r + 1]);
    if (indptr[rows] && !indices) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "indices is NULL");
    for (int64_t i = 0; i < indptr[rows]; i++)
        if (check_number("indices", i, indices[i], columns, err)) return err->status;
    if (rows && columns) memset(table, 0, (size_t)(rows * columns));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = indptr[r]; i < indptr[r + 1]; i++) table[r * columns + indices[i]] = 1;
    return ATTUNE_OK;
}

attune_status attune_blocks_from_lists(const int32_t *lists, int64_t rows, int64_t places, int64_t columns,
                                       uint8_t *table) {
    at_error err = {0};
    from_lists(lists, rows, places, columns, table, &err);
    return at_report(&err);
}

attune_status attune_blocks_from_csr(const int32_t *indptr, const int32_t *indices, int64_t rows, int64_t columns,
                                     uint8_t *table) {
    at_error err = {0};
    from_csr(indptr, indices, rows, columns, table, &err);
    return at_report(&err);
}
