// SPDX-License-Identifier: Apache-2.0
//
// Starts the kernels of kernel_launch.cu on a stream of the current GPU. Requires at least one
// item. Each returns a cudaError_t, as a number: nvcc's side and the host's side share no header of
// ours but this one and kernels.h.
#ifndef TESSERA_DEVICE_CUDA_KERNEL_LAUNCH_H_
#define TESSERA_DEVICE_CUDA_KERNEL_LAUNCH_H_

#include "device/cuda/kernels.h"

namespace tessera::cuda {

// Loads all kernels on the current GPU.
int load_kernels();

int launch(const CopyBatch& batch, void* stream);
int launch(const Reduce& reduce, void* stream);
int launch(const Fill& fill, void* stream);
int launch(const Iota& iota, void* stream);
int launch(const Cast& cast, void* stream);

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_KERNEL_LAUNCH_H_
