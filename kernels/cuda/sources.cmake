# The files of the CUDA backend, for the two that compile them: CMakeLists.txt beside this with nvcc,
# tests/emulation with the host's compiler.
set(amp_cuda_kernels
  batchnorm.cu batchnorm_pool.cu conv_gradient.cu conv_layout.cu conv_update.cu copy.cu cost.cu flat.cu
  image_conv.cu image_gradient.cu inspect.cu lists.cu plane_gradient.cu pointwise.cu pool.cu region.cu shape.cu
  softmax.cu yolo.cu)
set(amp_cuda_sources backend.c context.c conv.c conv_choice.c conv_problem.c conv_weights.c conv_work.c
  plan_cache.c settings.c)
# What the emulation has its own of: tensor_core_host.c.
set(amp_cuda_libraries
  cudnn_graph.c cudnn_plan.c gemm_cublaslt.c tensor_core_bench.c tensor_core_beside.c
  tensor_core_contest.c tensor_core_cuda.c tensor_core_fault.c tensor_core_guess.c tensor_core_image.c
  tensor_core_image_gradient.c tensor_core_sums.c tensor_core_timing.c)
list(TRANSFORM amp_cuda_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM amp_cuda_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM amp_cuda_libraries PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
