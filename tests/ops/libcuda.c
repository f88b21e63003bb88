/* What Triton calls of CUDA's driver, where there is no GPU: every module can be loaded, and a
   launch calls a function of the test. */

#include "cuda.h"

CUresult (*on_launch)(CUfunction, const unsigned *, CUstream, unsigned, void **);
CUresult (*on_address)(CUdeviceptr);

#define OK(signature, statement)                                                                   \
    CUresult signature {                                                                           \
        statement;                                                                                 \
        return CUDA_SUCCESS;                                                                       \
    }

static char context, module;
static size_t num_functions;

OK(cuCtxGetCurrent(CUcontext *result), *result = (CUcontext)&context)
OK(cuCtxSetCurrent(CUcontext given), (void)given)
OK(cuCtxGetLimit(size_t *value, CUlimit limit), *value = 0)
OK(cuCtxSetLimit(CUlimit limit, size_t value), (void)value)
OK(cuDeviceGet(CUdevice *device, int number), *device = number)
OK(cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice device), *result = (CUcontext)&context)
OK(cuDriverGetVersion(int *version), *version = CUDA_VERSION)
OK(cuGetErrorString(CUresult error, const char **text), *text = "an error")

OK(cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device), *value = 232448)

OK(cuModuleLoadData(CUmodule *result, const void *image), *result = (CUmodule)&module)
OK(cuModuleGetFunction(CUfunction *result, CUmodule from, const char *name),
   *result = (CUfunction)__sync_add_and_fetch(&num_functions, 1))
OK(cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function), *value = 1024)
OK(cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value), (void)value)
OK(cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config), (void)config)

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr address) {
    *(CUdeviceptr *)value = address;
    return on_address(address);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra) {
    /* The grid, the threads and the shared memory follow each other. */
    return on_launch(function, &config->gridDimX, config->hStream, config->numAttrs, parameters);
}
