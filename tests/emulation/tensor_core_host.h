/* What a test can ask of the host's Tensor Cores. */
#ifndef TENSOR_CORE_HOST_H
#define TENSOR_CORE_HOST_H

#include <stdbool.h>
#include <stddef.h>

/* Refuse what cuDNN has no plans for on some devices: FP32 results of 16-bit operands, data
 * gradients that are added. */
void tensor_core_host_refuse(bool fp32_results, bool accumulate);
/* How many convolutions were computed here; others by kernels. */
size_t tensor_core_host_forward(void);

#endif
