/* The cfgs that Darknet ships (AMP_STOCK_CFG: their folder). Include after tests/rig/harness.h. */
#ifndef AMP_TEST_STOCK_H
#define AMP_TEST_STOCK_H

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define STOCK_MOST 100

static int stock_is_cfg(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 4 && strcmp(e->d_name + n - 4, ".cfg") == 0;
}

/* Their paths, sorted; returns how many. */
static int stock_cfgs(char paths[STOCK_MOST][4096])
{
    struct dirent **list;
    int n = scandir(AMP_STOCK_CFG, &list, stock_is_cfg, alphasort);
    if (n > STOCK_MOST) n = STOCK_MOST;
    for (int i = 0; i < n; i++) {
        snprintf(paths[i], 4096, "%s/%s", AMP_STOCK_CFG, list[i]->d_name);
        free(list[i]);
    }
    if (n >= 0) free(list);
    return n;
}

#endif
