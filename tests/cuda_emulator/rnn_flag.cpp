// Whether the next forward pass of one of cuDNN's RNNs would begin anew with its dropout: a flag of
// CUDA generators that Python does not show. Compiled by test_generators.py and by
// nobody else.

#include <ATen/cuda/CUDAGeneratorImpl.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

// As such a pass asks: 1, and 0 the next time.
EXPORT int rnn_begins_anew() {
  return at::cuda::detail::getDefaultCUDAGenerator(0)
      .get<at::CUDAGeneratorImpl>()
      ->reset_rnn_state();
}
