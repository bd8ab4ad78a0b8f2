/* `detector map --page`: one HTML file with precision-recall curves, F1 and what is taken for what,
 * of one measurement or of two beside each other. Pure C. */
#ifndef AMP_MAP_PAGE_H
#define AMP_MAP_PAGE_H

#include "counts.h"
#include "map.h"

/* A measurement: what is printed, written and drawn of it. */
struct amp_map_report {
    struct amp_map_settings settings;
    const struct amp_eval_set *set;
    struct amp_map_result result;
    struct amp_bootstrap bootstrap; /* not drawn */
    struct amp_counts counts;
};

#define AMP_MAP_PAGE "darknet-amp detector map page 1" /* near the beginning: page/map.html */
/* Writes it whole or not at all. The reports are of the same classes. 0, or -1 with text in err. */
int amp_map_page_write(const char *path, const struct amp_map_report *reports, int n, char *err,
                       size_t err_size);

#endif
