/* For the files that check what one of Darknet's own commands needs: darknet_checks.c over
 * darknet_data.c and darknet_net.c. */
#ifndef AMP_DARKNET_CHECKS_H
#define AMP_DARKNET_CHECKS_H

#include "darknet_commands.h"
#include "plugin/input/checker.h"
#include "plugin/input/class_labels.h"

struct amp_darknet_checks {
    const struct amp_darknet_line *line;
    struct amp_checker k;
    const struct amp_cfg_section *data; /* NULL: none */
    struct amp_class_labels labels;     /* that images are looked up by; of none n is 0 */
};

static inline bool amp_darknet_takes(const struct amp_darknet_checks *c, unsigned what)
{
    return c->line->command->takes & what;
}

/* ---- darknet_data.c ---- */

/* Whether something can be written there. why: the end of the message. */
void amp_darknet_check_folder(struct amp_darknet_checks *, const char *folder, const char *why);
/* A list of images. explanation: the end of a message about its name. */
void amp_darknet_check_list(struct amp_darknet_checks *, const char *path, const char *explanation);
/* What the command takes from its data file. */
void amp_darknet_check_data(struct amp_darknet_checks *);

/* ---- darknet_net.c ---- */

/* There is one. */
void amp_darknet_check_net(struct amp_darknet_checks *);

#endif
