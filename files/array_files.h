// SPDX-License-Identifier: Apache-2.0
//
// Whole tensors in one file: .npy and .safetensors.
//
//   DTensor x = *read_npy(client, "x.npy", Layout::parse(mesh, "[batch, -]"));
//   Status written = write_npy(client, "y.npy", y);
//   written = write_safetensors(client, "model.safetensors", {{"w", w}}, {{"step", "7"}});
//
// Values are row-major and little-endian in the file, whatever the layout. Each client reads the
// parts that its devices need, and writes the parts that its devices hold.
//
// The functions are collective: every client of the job calls them with equal arguments, in the
// order of its other collective calls, and all get one Status. An error names the client that found
// it, where not all did.
//
// A file appears under its name when it is whole, and replaces a file of that name: a reader sees
// the old file or the new one. After an error, and after a kill, the old file is as it was.
//
// numpy: load, save. safetensors: save_file.
#ifndef TESSERA_FILES_ARRAY_FILES_H_
#define TESSERA_FILES_ARRAY_FILES_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {

// The name is UTF-8 of 1 to 1024 bytes without control characters, and not "__metadata__".
struct NamedTensor {
  std::string name;
  DTensor tensor;
};

// The array of a .npy file of version 1, 2 or 3. Fortran order and big-endian numbers are
// converted.
//   InvalidArgument   the file is no .npy, or the layout has another rank
//   Unimplemented     a dtype that Tessera lacks: complex, text, dates, structures
//   DataLoss          the file ends before its last element
StatusOr<DTensor> read_npy(const Client& client, absl::string_view path, const LayoutArg& layout);

// Byte for byte the file that numpy.save writes. InvalidArgument for bf16, which .npy lacks: cast
// to f32, or write safetensors.
Status write_npy(const Client& client, absl::string_view path, const DTensor& tensor);

// One plain safetensors file of whole tensors, as other tools read it: wider dtypes first, then by
// name. `metadata` becomes its __metadata__, with "format" = "pt" added where that is not set.
// InvalidArgument for a name that is no legal one or is there twice, and where the header would
// exceed 100,000,000 bytes.
Status write_safetensors(const Client& client, absl::string_view path,
                         absl::Span<const NamedTensor> tensors,
                         std::map<std::string, std::string> metadata = {});

}  // namespace tessera

#endif  // TESSERA_FILES_ARRAY_FILES_H_
