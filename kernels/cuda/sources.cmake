# The files of the CUDA backend, for the two that compile them: CMakeLists.txt beside this with nvcc,
# tests/emulation with the host's compiler.
set(amp_cuda_kernels
  conv/conv_layout.cu conv/conv_weights.cu conv/image_conv.cu conv/image_gradient.cu
  conv/plane_gradient.cu
  ops/batchnorm.cu ops/batchnorm_pool.cu ops/batchnorm_sums.cu ops/copy.cu ops/flat.cu
  ops/heads.cu ops/losses.cu ops/pointwise.cu ops/pool.cu ops/shape.cu ops/update.cu ops/yolo_rules.cu)
set(amp_cuda_sources
  conv/conv.c conv/conv_choice.c conv/conv_operands.c
  libs/plan_cache.c libs/problem.c runtime/backend.c runtime/context.c runtime/ranges.c)
# What the emulation has its own of: tensor_core_host.c.
set(amp_cuda_libraries
  libs/bench.c libs/choose.c libs/cudnn_graph.c libs/cudnn_plan.c libs/engine.c
  libs/gemm_cublaslt.c libs/plans.c libs/verify.c)
list(TRANSFORM amp_cuda_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM amp_cuda_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM amp_cuda_libraries PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
