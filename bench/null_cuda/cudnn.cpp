// What PyTorch calls of cuDNN for convolutions and batch norms under TORCH_CUDNN_V8_API_DISABLED.
// Each is one kernel that computes nothing, in float16 and without a workspace. (cuDNN's headers
// need not be here: enumerations are int, handles pointers.)

#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

void null_cuda_work(double bytes, double products);

namespace {

// A descriptor: the sizes of a tensor, or of a filter, which begin with its outputs.
using Sizes = std::vector<int>;

double elements(const Sizes* of) {
  return std::accumulate(of->begin(), of->end(), 1.0, std::multiplies<>());
}
int convolve(const Sizes* input, const Sizes* filter, const Sizes* output) {
  null_cuda_work(2 * (elements(input) + elements(filter) + elements(output)),
                 elements(output) * elements(filter) / filter->front());
  return 0;
}
int normalize(const Sizes* input, int passes) {
  null_cuda_work(2 * passes * elements(input), 0);
  return 0;
}

struct Algorithm {  // cudnnConvolutionFwdAlgoPerf_t, and those of the gradients
  int algorithm, status;
  float milliseconds;
  size_t workspace;
  int is_deterministic, math, reserved[3];
};

}  // namespace

#define NOTHING(name) \
  EXPORT int cudnn##name(...) { return 0; }
#define CREATE(name)                           \
  EXPORT int cudnnCreate##name(Sizes** made) { \
    *made = new Sizes;                         \
    return 0;                                  \
  }
#define DESTROY(name)                          \
  EXPORT int cudnnDestroy##name(Sizes* gone) { \
    delete gone;                               \
    return 0;                                  \
  }
#define SIZES(name, ...)                                                                \
  EXPORT int cudnnSet##name(Sizes* of, __VA_ARGS__, int count, const int* sizes, ...) { \
    of->assign(sizes, sizes + count);                                                   \
    return 0;                                                                           \
  }
#define ALGORITHM(name)                                                                      \
  EXPORT int cudnnGetConvolution##name##Algorithm_v7(void*, void*, void*, void*, void*, int, \
                                                     int* count, Algorithm* found) {         \
    *count = 1;                                                                              \
    *found = {.algorithm = 1, .is_deterministic = 1};                                        \
    return 0;                                                                                \
  }
#define NO_MEMORY(name, ...)                              \
  EXPORT int cudnnGet##name(__VA_ARGS__, size_t* bytes) { \
    *bytes = 0;                                           \
    return 0;                                             \
  }

EXPORT size_t cudnnGetVersion() { return 91999; }
CREATE()
NOTHING(SetStream)
CREATE(TensorDescriptor)
SIZES(TensorNdDescriptor, int)
DESTROY(TensorDescriptor)
CREATE(FilterDescriptor)
SIZES(FilterNdDescriptor, int, int)
DESTROY(FilterDescriptor)
CREATE(ConvolutionDescriptor)
NOTHING(SetConvolutionNdDescriptor)
NOTHING(SetConvolutionGroupCount)
NOTHING(SetConvolutionMathType)
DESTROY(ConvolutionDescriptor)

ALGORITHM(Forward)
EXPORT int cudnnConvolutionForward(void*, void*, Sizes* x, void*, Sizes* filter, void*, void*, int,
                                   void*, size_t, void*, Sizes* y, void*) {
  return convolve(x, filter, y);
}
ALGORITHM(BackwardData)
EXPORT int cudnnConvolutionBackwardData(void*, void*, Sizes* filter, void*, Sizes* y, void*, void*,
                                        int, void*, size_t, void*, Sizes* x, void*) {
  return convolve(x, filter, y);
}
ALGORITHM(BackwardFilter)
EXPORT int cudnnConvolutionBackwardFilter(void*, void*, Sizes* x, void*, Sizes* y, void*, void*,
                                          int, void*, size_t, void*, Sizes* filter, void*) {
  return convolve(x, filter, y);
}

NO_MEMORY(BatchNormalizationForwardTrainingExWorkspaceSize, void*, int, int, void*, void*, void*,
          void*, void*)
NO_MEMORY(BatchNormalizationBackwardExWorkspaceSize, void*, int, int, void*, void*, void*, void*,
          void*, void*, void*)
NO_MEMORY(BatchNormalizationTrainingExReserveSpaceSize, void*, int, int, void*, void*)
CREATE(ActivationDescriptor)
NOTHING(SetActivationDescriptor)
EXPORT int cudnnBatchNormalizationForwardTrainingEx(void*, int, int, void*, void*, Sizes* x, ...) {
  return normalize(x, 3);
}
EXPORT int cudnnBatchNormalizationBackwardEx(void*, int, int, void*, void*, void*, void*, Sizes* x,
                                             ...) {
  return normalize(x, 5);
}
