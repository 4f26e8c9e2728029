/* Lists that only grow, for plans and kernels by the kind of call. There is no lock, which fork() could leave locked.
 */
#ifndef ATTUNE_COMMON_LIST_H
#define ATTUNE_COMMON_LIST_H

#include <stdatomic.h>
#include <stdbool.h>

/* The first member of an entry. */
typedef struct common_link {
    struct common_link *next;
} common_link;

/* The first entry; NULL: the list is empty. */
typedef _Atomic(common_link *) common_list;

typedef bool common_is_fn(const common_link *entry, const void *key);

/* The entry with this key; NULL if there is none. */
common_link *common_find(common_list *list, common_is_fn *is, const void *key);

/* Adds an entry, which has this key. If another thread has added one in the meantime, that one is returned instead. */
common_link *common_add(common_list *list, common_link *entry, common_is_fn *is, const void *key);

#endif
