// SPDX-License-Identifier: Apache-2.0
//
// run_on_devices(): an operation whose devices compute from their own shards, and from parts that
// they fetch from others. Internal, for ops/.
//
// All that a call needs besides memory is prepared once, in a DeviceProgram, which the caller keeps
// for equal calls.
#ifndef TESSERA_DTENSOR_DEVICE_OP_H_
#define TESSERA_DTENSOR_DEVICE_OP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/arithmetic.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "relayout/fetch.h"
#include "relayout/plan.h"

namespace tessera {
class Engine;  // compute/engine.h
}  // namespace tessera

namespace tessera::internal {

// The dense boxes that one local device reads and writes, with the inputs in their order.
struct DeviceRow {
  int ordinal = 0;
  int64_t position = 0;  // in the mesh of the result
  std::vector<Box> in;
  Box out;
};

// Computes the output of one device by its engine, null where threads of the host compute for it.
// The memory holds the row's boxes. Called on the thread of the device, or on the caller's thread;
// on several devices at the same time.
using DeviceKernel = std::function<Status(Engine* engine, const DeviceRow& row,
                                          absl::Span<const std::byte* const> in, std::byte* out)>;

// Immutable. Holds no mesh with a runtime, so that a cache may keep it.
struct DeviceProgram {
  DType dtype;
  Shape shape;
  // The layout of the result.
  Layout layout;
  DeviceKernel kernel;
  // The text of explain() for the result, after its first line.
  std::shared_ptr<const std::string> explanation;
  // By input; null where each device computes from its own shard.
  std::vector<std::shared_ptr<const Fetch>> fetches;
  std::vector<DeviceRow> rows;  // of this client's devices
  // The calling thread may run it if the devices are idle, which takes less time than waking
  // another thread.
  bool runs_on_caller = false;
};

// The facts of a tensor that are known before any of its shards is ready, equal on all clients.
struct TensorFacts {
  // The error of a tensor that failed before anything was started. The other members have no
  // meaning then.
  const Status& error;
  // Unique in this process for each client; never reused.
  uint64_t runtime_number = 0;
  bool uses_host_memory = true;
  // The arithmetic of the CPUs.
  Arithmetic arithmetic = {};
};
TensorFacts facts_of(const DTensor& tensor);
// Whether both are handles of one tensor.
bool is_same_tensor(const DTensor& a, const DTensor& b);
// The state of the layer of operations for the tensor's client. The first call makes it by `make`;
// it is destroyed with the client. Thread-safe. It must hold no mesh with a runtime. Requires no
// error.
void* op_state_of(const DTensor& tensor, absl::FunctionRef<std::shared_ptr<void>()> make);
// The options by which relayouts of the tensor are planned. Requires no error.
PlanOptions plan_options_of(const DTensor& tensor);
// A tensor that carries only an error.
DTensor failed_tensor(DType dtype, const Shape& shape, const StatusOr<Layout>& layout,
                      Status error);

// How a tensor was computed, for the tapes that record it.
class Trace {
 public:
  virtual ~Trace() = default;
  // `result` with a trace of its own. relayout() has moved it from `source`, which has this trace.
  virtual DTensor moved(DTensor result, const DTensor& source) const = 0;
};
// Null where no tape records the tensor.
const std::shared_ptr<const Trace>& trace_of(const DTensor& tensor);
// The same tensor with another trace.
DTensor with_trace(const DTensor& tensor, std::shared_ptr<const Trace> trace);

// An input of the devices' computation: `layout` is the layout of the input when the program runs;
// `fetch` are the parts that they fetch, null for none.
struct DeviceInput {
  const Layout& layout;
  std::shared_ptr<const Fetch> fetch;
};
// Requires inputs without errors of one client, on devices of one mesh in one order, which must be
// the order of the result. A kernel that calls a function of the user runs on the devices' threads
// only: the calling thread holds a turn (turns.h), in which such a function must not be called.
std::shared_ptr<const DeviceProgram> make_device_program(absl::Span<const DTensor> inputs,
                                                         absl::Span<const DeviceInput> used,
                                                         DType dtype, Shape shape,
                                                         const Layout& layout, DeviceKernel kernel,
                                                         std::string explanation, bool calls_user);
// The tensor, explained as the program's result is.
DTensor explained_as(const DTensor& tensor, const DeviceProgram& program);
// Requires inputs of the layouts, shapes and client that the program was made for. An error of a
// device's input is the error of its output. `label` names the operation in messages.
DTensor run_on_devices(const char* label, std::shared_ptr<const DeviceProgram> program,
                       absl::Span<const DTensor> inputs);

// A tensor whose local boxes are written by `fill` in tasks of their devices, by their engines as
// above, several at the same time. Devices that use memory of the host share equal boxes.
using FillBox = std::function<Status(Engine* engine, const Box& box, std::byte* out)>;
DTensor generate(const char* label, DType dtype, const Shape& shape, const LayoutArg& layout,
                 FillBox fill);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_DEVICE_OP_H_
