/* Decides what a saved file is called. It must not know when it is saved. */
#include "names.h"

#include "plugin/core/files/checkpoint.h"

#include <stdio.h>
#include <string.h>

static bool is_stock(const struct amp_session *s)
{
    return s->desc->dialect == AMP_DIALECT_STOCK;
}

const char *amp_names_backup_ending(const struct amp_session *s)
{
    return is_stock(s) ? ".backup" : AMP_WEIGHTS_LAST;
}

/* Everything before ".backup". */
static int stem(const char *backup)
{
    return (int)(strlen(backup) - strlen(".backup"));
}

/* A name that the trainer has given itself, as the user did, stays. */
static bool is_stocks_backup(const char *asked)
{
    size_t length = strlen(asked), ending = strlen(".backup");
    return length > ending && !strcmp(asked + length - ending, ".backup");
}

bool amp_names_choose(const struct amp_session *s, const char *asked, char name[PATH_MAX])
{
    bool renames = !is_stock(s) && is_stocks_backup(asked);
    if (!is_stock(s) && amp_weights_is_numbered(asked)) return false;
    if (renames)
        snprintf(name, PATH_MAX, "%.*s" AMP_WEIGHTS_LAST, stem(asked), asked);
    else
        snprintf(name, PATH_MAX, "%s", asked);
    return true;
}

enum { LONG_RUN = 10000, EVERY = 1000, EVERY_OF_LONG = 10000 };

bool amp_names_numbered(const struct amp_session *s, const char *asked, char name[PATH_MAX])
{
    size_t iteration = amp_iterations_in(s->net, *s->net->seen);
    size_t every = s->net->max_batches < LONG_RUN ? EVERY : EVERY_OF_LONG;
    if (is_stock(s) || !is_stocks_backup(asked) || !iteration || iteration % every) return false;
    snprintf(name, PATH_MAX, "%.*s_%zu.weights", stem(asked), asked, iteration);
    return true;
}
