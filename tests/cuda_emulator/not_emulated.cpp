// What torch can call of CUDA's runtime beyond cudart.cpp, and no job here does: an error that
// names the function. (Without CUDA's headers, which declare them with their parameters.)

extern "C" int cuda_emulator_refuse(const char* function);

#define NOT_EMULATED(name)                                       \
  extern "C" __attribute__((visibility("default"))) int name() { \
    return cuda_emulator_refuse(#name);                          \
  }

NOT_EMULATED(cudaDeviceGetDefaultMemPool)
NOT_EMULATED(cudaFreeAsync)
NOT_EMULATED(cudaGetSymbolAddress)
NOT_EMULATED(cudaGraphAddNode)
NOT_EMULATED(cudaGraphConditionalHandleCreate)
NOT_EMULATED(cudaGraphDebugDotPrint)
NOT_EMULATED(cudaGraphNodeGetDependencies)
NOT_EMULATED(cudaIpcCloseMemHandle)
NOT_EMULATED(cudaIpcGetEventHandle)
NOT_EMULATED(cudaIpcGetMemHandle)
NOT_EMULATED(cudaIpcOpenEventHandle)
NOT_EMULATED(cudaIpcOpenMemHandle)
NOT_EMULATED(cudaKernelSetAttributeForDevice)
NOT_EMULATED(cudaLibraryGetKernel)
NOT_EMULATED(cudaLibraryLoadData)
NOT_EMULATED(cudaLibraryUnload)
NOT_EMULATED(cudaMallocAsync)
NOT_EMULATED(cudaMemPoolGetAttribute)
NOT_EMULATED(cudaMemPoolSetAccess)
NOT_EMULATED(cudaMemPoolSetAttribute)
NOT_EMULATED(cudaMemPoolTrimTo)
NOT_EMULATED(cudaMemcpyToSymbol)
NOT_EMULATED(cudaStreamBeginCaptureToGraph)
NOT_EMULATED(cudaStreamUpdateCaptureDependencies)

// Graphs, and what else the stand-in whose kernels compute nothing leaves out.
#ifdef NULL_CUDA
NOT_EMULATED(cudaDeviceEnablePeerAccess)
NOT_EMULATED(cudaGraphDestroy)
NOT_EMULATED(cudaGraphExecDestroy)
NOT_EMULATED(cudaGraphGetNodes)
NOT_EMULATED(cudaGraphInstantiateWithFlags)
NOT_EMULATED(cudaGraphLaunch)
NOT_EMULATED(cudaHostRegister)
NOT_EMULATED(cudaHostUnregister)
NOT_EMULATED(cudaLaunchHostFunc)
NOT_EMULATED(cudaMemcpy2DAsync)
NOT_EMULATED(cudaMemcpyPeerAsync)
NOT_EMULATED(cudaStreamAddCallback)
NOT_EMULATED(cudaStreamBeginCapture)
NOT_EMULATED(cudaStreamEndCapture)
#endif
