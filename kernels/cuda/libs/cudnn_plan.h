/* Plans of cuDNN for one problem: lists the engines that could compute it, makes a plan of one of
 * them, runs a plan.
 *
 * Engines whose results we could not stand by are never candidates: those that round operands or
 * sums below FP32 on the way (down-converting, Winograd, FFT), and those that add in another order
 * each time. Nor are engines that are compiled when a plan is made: that takes a second or so at
 * every start. */
#ifndef AMPK_CUDA_CUDNN_PLAN_H
#define AMPK_CUDA_CUDNN_PLAN_H

#include "cudnn_graph.h"

enum { AMPK_CUDNN_KNOBS = 24 };

/* An engine and its settings. */
struct ampk_cudnn_choice {
    int64_t engine;
    int knobs;
    struct {
        int64_t type, value;
    } knob[AMPK_CUDNN_KNOBS];
    bool tensor_cores;
};

/* cuDNN's ways to guess what is fast, best first: two models, then what works for most problems. */
enum { AMPK_CUDNN_MODES = 3 };
extern const cudnnBackendHeurMode_t ampk_cudnn_modes[AMPK_CUDNN_MODES];

/* Adds the choices that one mode names, best guess first, to `count` existing ones, at most `most`
 * in all, without duplicates. Returns the new count. Writes why if a mode names none. */
int ampk_cudnn_candidates(const struct ampk_cudnn_device *, const struct ampk_tc_problem *,
                          cudnnBackendHeurMode_t, struct ampk_cudnn_choice *, int count, int most,
                          char *why, size_t why_size);

/* Adds in the same way the choices that differ from `from` in one setting: by every value that its
 * engine has for the setting if there are few, else by half and twice the value. `from` may be one
 * of the choices. Only making a plan shows whether the engine takes such settings. */
int ampk_cudnn_neighbours(const struct ampk_cudnn_device *, const struct ampk_tc_problem *,
                          const struct ampk_cudnn_choice *from, struct ampk_cudnn_choice *,
                          int count, int most);

/* "ENGINE TYPE=VALUE TYPE=VALUE ..." */
void ampk_cudnn_choice_write(const struct ampk_cudnn_choice *, char *text, size_t size);
bool ampk_cudnn_choice_read(const char *text, struct ampk_cudnn_choice *);

struct ampk_cudnn_plan {
    int64_t engine;
    struct ampk_cudnn_set set;
    cudnnBackendDescriptor_t plan;
    size_t workspace;
    bool tensor_cores;
    enum ampk_tc_pass pass;
    int channels; /* length of the vectors of sums; 0: no sums */
};

/* NULL with the reason if the engine refuses or wants more workspace. */
struct ampk_cudnn_plan *ampk_cudnn_plan_create(const struct ampk_cudnn_device *,
                                               const struct ampk_tc_problem *,
                                               const struct ampk_cudnn_choice *,
                                               size_t workspace_limit, char *why, size_t why_size);

/* Terms that a plan must meet if it is not timed. */
struct ampk_cudnn_terms {
    size_t workspace_limit;
    /* Whether a plan will do, else the reason. NULL: every plan does. */
    bool (*accepts)(void *by, const struct ampk_cudnn_choice *, struct ampk_cudnn_plan *, char *why,
                    size_t why_size);
    void *by;
};

/* The plan that cuDNN expects to be fastest, for when nothing can be timed: of the choices that
 * meet the terms, the first with Tensor Cores, else the first. */
struct ampk_cudnn_plan *ampk_cudnn_plan_expected(const struct ampk_cudnn_device *,
                                                 const struct ampk_tc_problem *,
                                                 const struct ampk_cudnn_terms *,
                                                 struct ampk_cudnn_choice *chosen, char *why,
                                                 size_t why_size);
void ampk_cudnn_plan_destroy(struct ampk_cudnn_plan *);

/* Runs on the handle's stream, with operands as in ampk_tc_run. False with the reason if cuDNN
 * refuses. */
bool ampk_cudnn_plan_run(const struct ampk_cudnn_device *, const struct ampk_cudnn_plan *,
                         const void *first, const void *second, void *result,
                         const struct ampk_tc_sums *, void *workspace, char *why, size_t why_size);

#endif
