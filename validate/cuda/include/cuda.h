/* cuda.h: put in front of CUDA's own with CGO_CFLAGS=-I<this directory>.
 *
 * gorgonia.org/cu v0.9.6 is written against CUDA 11 and 12. CUDA 13 changed the
 * signatures of five calls that it uses; the driver still exports their former
 * entry points, so they are declared and chosen here. In every version, cu's
 * package initialisation ends the process when there is no GPU; here cuInit
 * never fails for it, and validate/cuda reports the real result when a card is
 * opened.
 */
#include_next <cuda.h> /* outside the guard: this file may be found twice on the way */

#ifndef ALLOCSIM_CUDA_H
#define ALLOCSIM_CUDA_H

#if CUDA_VERSION >= 13000

#undef cuCtxCreate
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev);
#define cuCtxCreate cuCtxCreate_v2

#undef cuMemAdvise
CUresult CUDAAPI cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device);

#undef cuMemPrefetchAsync
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream);

#undef cuGraphAddDependencies
CUresult CUDAAPI cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to, size_t numDependencies);

#undef cuGraphGetEdges
CUresult CUDAAPI cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges);

#endif /* CUDA_VERSION >= 13000 */

static inline CUresult allocsim_init(unsigned int flags) { return cuInit(flags); }
static inline CUresult allocsim_init_quietly(unsigned int flags) { (void)cuInit(flags); return CUDA_SUCCESS; }
#define cuInit allocsim_init_quietly

#endif
