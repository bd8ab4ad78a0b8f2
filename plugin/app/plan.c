/* `darknet amp plan`: prints what the plan would be. It decides nothing; core/plan.c does. It must
 * not build a network: the cfg is enough, also on a machine that could not hold it. */

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "measuring.h"
#include "plugin/core/named_files.h"
#include "plugin/core/plan.h"
#include "plugin/core/text.h"

static void print_text(const struct amp_plan *plan, const struct amp_net_desc *net,
                       const struct amp_cfg_file *cfg, const struct amp_options *options)
{
    const struct amp_cfg_section *first = cfg->sections;
    amp_plan_print(plan, net, stdout);
    amp_schedule_print(&options->schedule, amp_cfg_float(first, "learning_rate", .001),
                       amp_cfg_float(first, "momentum", .9), stdout);
}

static int print_plan(const struct amp_cfg_file *cfg, bool json, int gpu, char *err,
                      size_t err_size)
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
    amp_notes_print(notes, stderr);
    if (!options.mixed_precision)
        fprintf(stderr,
                "darknet-amp: %s: mixed precision is off, mixed_precision=1 is missing under "
                "[net]; with it the plan would be:\n",
                cfg->path);
    amp_machine_settle_dtype(&options, gpu);
    struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, true, err, err_size);
    struct amp_plan *plan =
        net ? amp_plan_make(net, &options, amp_machine_layers_ours(&options, gpu), NULL, true, err,
                            err_size)
            : NULL;
    if (plan && json)
        amp_plan_print_json(plan, net, stdout);
    else if (plan)
        print_text(plan, net, cfg, &options);
    int result = plan ? 0 : -1;
    amp_plan_free(plan);
    amp_net_desc_free(net);
    return result;
}

int amp_command_plan(int argc, char **argv)
{
    const char *path = NULL;
    bool json = false;
    int gpu = 0;
    char err[1024];
    const struct amp_argument options[] = {
        {.name = "json", .help = "Print one JSON object", .target = &json},
        AMP_GPU_ARGUMENTS(&gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "CFG",
        .help =
            "Prints for every layer of a network in which precision it computes and stores, and "
            "why, and what that takes in memory. Reads the cfg only; trains nothing.",
        .file = {&path},
        .least_files = 1,
        .options = options};
    amp_arguments_read(&line, argc, argv);
    struct amp_cfg_file *cfg = amp_cfg_read(path, err, sizeof err);
    int failed = !cfg || print_plan(cfg, json, gpu, err, sizeof err);
    if (!failed && (fflush(stdout) || ferror(stdout))) {
        snprintf(err, sizeof err, "the plan cannot be written: %s", strerror(errno));
        failed = 1;
    }
    if (failed) fprintf(stderr, "darknet-amp: %s\n", err);
    amp_cfg_free(cfg);
    return failed;
}
