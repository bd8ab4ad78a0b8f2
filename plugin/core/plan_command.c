#include "plan_command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "layers.h"
#include "named_files.h"
#include "plan.h"

struct request {
    const char *cfg_path;
    int json;
};

static int read_arguments(int argc, char **argv, struct request *r)
{
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            r->json = 1;
        else if (argv[i][0] == '-' || r->cfg_path)
            return -1;
        else
            r->cfg_path = argv[i];
    }
    return r->cfg_path ? 0 : -1;
}

static int print_plan(const struct amp_cfg_file *cfg, int json, char *err, size_t err_size)
{
    struct amp_options options;
    char notes[4096] = "";
    if (amp_named_files_check(cfg, err, err_size) ||
        amp_options_read(cfg, &options, notes, sizeof notes, err, err_size))
        return -1;
    /* Without the key, reading the options has left Darknet's own keys to Darknet. */
    if (!options.mixed_precision &&
        amp_options_check_all_keys(cfg, notes, sizeof notes, err, err_size))
        return -1;
    if (notes[0]) fprintf(stderr, "darknet-amp: %s", notes); /* whole lines */
    if (!options.mixed_precision)
        fprintf(stderr,
                "darknet-amp: %s: mixed precision is off, mixed_precision=1 is missing under "
                "[net]; with it the plan would be:\n",
                cfg->path);
    struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, true, err, err_size);
    struct amp_plan *plan =
        net ? amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, err_size) : NULL;
    if (plan && json)
        amp_plan_print_json(plan, net, stdout);
    else if (plan)
        amp_plan_print(plan, net, stdout);
    int result = plan ? 0 : -1;
    amp_plan_free(plan);
    amp_net_desc_free(net);
    return result;
}

int amp_command_plan(int argc, char **argv)
{
    struct request r = {NULL, 0};
    char err[1024];
    if (read_arguments(argc, argv, &r)) {
        fprintf(stderr, "usage: %s amp plan CFG [--json]\n", argv[0]);
        return 1;
    }
    struct amp_cfg_file *cfg = amp_cfg_read(r.cfg_path, err, sizeof err);
    int failed = !cfg || print_plan(cfg, r.json, err, sizeof err);
    if (!failed && (fflush(stdout) || ferror(stdout))) {
        snprintf(err, sizeof err, "the plan cannot be written: %s", strerror(errno));
        failed = 1;
    }
    if (failed) fprintf(stderr, "darknet-amp: %s\n", err);
    amp_cfg_free(cfg);
    return failed;
}
