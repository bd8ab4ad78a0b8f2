/* Plans of cuDNN for one problem: which engines could do it, a plan of one of them, running it.
 *
 * Engines whose results we could not stand by are never candidates: those that round operands or
 * sums below FP32 on the way (down-converting, Winograd, FFT), and those whose sums come in another
 * order each time. Nor are those that are compiled when a plan is made: a second or so at every
 * start.
 */
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

/* cuDNN's ways to guess what is fast, best first: two models, and what works for most. */
enum { AMPK_CUDNN_MODES = 3 };
extern const cudnnBackendHeurMode_t ampk_cudnn_modes[AMPK_CUDNN_MODES];

/* Adds what one mode names, best guess first, to the choices that are there (count of at most
 * `most`), unless it is there already. Returns the new count; why is written if a mode names none.
 */
int ampk_cudnn_candidates(const struct ampk_cudnn_device *, const struct ampk_tc_problem *,
                          cudnnBackendHeurMode_t, struct ampk_cudnn_choice *, int count, int most,
                          char *why, size_t why_size);

/* Adds in the same way what differs from `from`, which may be one of the choices, in one setting:
 * by any value that its engine has for it where these are few, else by half and twice as much.
 * Whether the engine takes such settings shows when a plan is made. */
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
    int channels; /* of sums; 0: there are none */
};

/* NULL with the reason where the engine refuses, or wants more workspace. */
struct ampk_cudnn_plan *ampk_cudnn_plan_create(const struct ampk_cudnn_device *,
                                               const struct ampk_tc_problem *,
                                               const struct ampk_cudnn_choice *,
                                               size_t workspace_limit, char *why, size_t why_size);

/* What a plan that was not timed has to be like. */
struct ampk_cudnn_terms {
    size_t workspace_limit;
    /* Whether a plan will do, else the reason; NULL: each does. */
    bool (*accepts)(void *by, const struct ampk_cudnn_choice *, struct ampk_cudnn_plan *, char *why,
                    size_t why_size);
    void *by;
};

/* What cuDNN expects to be fastest, where nothing can be timed: the first choice with Tensor Cores
 * that makes such a plan, else the first that does. */
struct ampk_cudnn_plan *ampk_cudnn_plan_expected(const struct ampk_cudnn_device *,
                                                 const struct ampk_tc_problem *,
                                                 const struct ampk_cudnn_terms *,
                                                 struct ampk_cudnn_choice *chosen, char *why,
                                                 size_t why_size);
void ampk_cudnn_plan_destroy(struct ampk_cudnn_plan *);

/* On the handle's stream; operands as in ampk_tc_run. False with the reason if cuDNN refuses. */
bool ampk_cudnn_plan_run(const struct ampk_cudnn_device *, const struct ampk_cudnn_plan *,
                         const void *first, const void *second, void *result,
                         const struct ampk_tc_sums *, void *workspace, char *why, size_t why_size);

#endif
