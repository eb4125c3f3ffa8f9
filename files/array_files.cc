// SPDX-License-Identifier: Apache-2.0
//
// Writing moves a tensor to a layout in which each device has rows of its own, which are
// consecutive in the file: each byte is written by one client, in long runs. The tensors of a file
// are moved one after the other, so that one of them is in memory twice.
#include "files/array_files.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dtensor/client_messages.h"
#include "dtensor/device_op.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "dtensor/rounds.h"
#include "files/json_reader.h"
#include "files/new_file.h"
#include "files/npy.h"
#include "files/npy_data.h"
#include "files/random_access_file.h"
#include "files/safetensors.h"
#include "job/environment/host.h"

namespace tessera {
namespace {

using internal::Rounds;

constexpr size_t kMaxNameBytes = 1024;

// Client 0 sends what all have agreed on.
Rounds::Value agree_on_call(const Client& client, absl::string_view call, const std::string& text,
                            const Status& refused, absl::FunctionRef<Rounds::Value()> then) {
  const Rounds::Value mine = refused.ok() ? Rounds::Value(text) : Rounds::Value(refused);
  return internal::rounds_of(client).agree(
      client, call, mine, [&](absl::Span<const std::string> values) -> Rounds::Value {
        const auto other = std::find_if(values.begin(), values.end(),
                                        [&](const std::string& value) { return value != text; });
        if (other == values.end()) return then();
        const auto id = static_cast<int>(other - values.begin());
        return absl::InvalidArgumentError(
            absl::StrCat("clients make different calls: ", internal::describe_client(client, 0),
                         " has ", quoted_whole(text), ", and ",
                         internal::describe_client(client, id), " has ", quoted_whole(*other)));
      });
}

// The layout in which each device has rows of its own. Scalars are replicated.
StatusOr<Layout> by_rows(const Layout& layout) {
  if (layout.rank() == 0) return Layout::replicated(layout.mesh(), 0);
  std::vector<DimSharding> dims(layout.rank());
  for (const MeshAxis& axis : layout.mesh().axes()) dims[0].push_back(axis.name);
  return Layout::create(layout.mesh(), std::move(dims));
}

struct PlacedTensor {
  const DTensor* tensor;
  int64_t offset;  // in the file
};

// Writes the rows of this client's devices.
Status write_rows(const Client& client, const PlacedTensor& placed, const DTensor& rows,
                  files::NewFile& file) {
  int shard = 0;
  for (const Device& device : client.local_devices()) {
    const std::optional<int64_t> position = rows.layout().mesh().position_of_device(device.id);
    if (!position.has_value()) continue;
    TESSERA_ASSIGN_OR_RETURN(const internal::RawShard raw, internal::raw_shard(rows, shard++));
    if (raw.box.is_empty() || (raw.box.sizes.empty() && *position != 0)) continue;
    const std::optional<int64_t> first = contiguous_offset(whole_box(rows.shape()), raw.box);
    const auto bytes = static_cast<size_t>(num_bytes(raw.box.sizes, rows.dtype()));
    TESSERA_RETURN_IF_ERROR(file.write(placed.offset + first.value_or(0) * dtype_size(rows.dtype()),
                                       absl::MakeConstSpan(raw.data, bytes)));
  }
  return absl::OkStatus();
}

// Makes the file `path` of `header` and the tensors. `text`: the arguments of the call.
Status write_file(const Client& client, const std::string& path, const std::string& call,
                  const std::string& text, const Status& refused, const std::string& header,
                  absl::Span<const PlacedTensor> tensors, int64_t size_bytes) {
  std::optional<files::NewFile> file;
  TESSERA_ASSIGN_OR_RETURN(const std::string partial_path,
                           agree_on_call(client, call, text, refused, [&]() -> Rounds::Value {
                             const std::string partial =
                                 absl::StrCat(path, ".", random_token().substr(0, 16), ".partial");
                             TESSERA_ASSIGN_OR_RETURN(
                                 file, files::NewFile::create(path, partial, size_bytes));
                             return partial;
                           }));
  Status status;
  if (client.client_id() == 0) {
    status = file->write(0, files::bytes_of(header));
  } else {
    StatusOr<files::NewFile> joined = files::NewFile::join(path, partial_path);
    status = joined.status();
    if (joined.ok()) file = *std::move(joined);
  }
  // The other clients move the tensors too, whether or not this one has an error.
  for (const PlacedTensor& placed : tensors) {
    const DTensor rows = relayout(*placed.tensor, by_rows(placed.tensor->layout()));
    if (status.ok()) status = write_rows(client, placed, rows, *file);
  }
  if (status.ok()) status = file->sync();
  const Rounds::Value mine = status.ok() ? Rounds::Value(std::string()) : Rounds::Value(status);
  const Rounds::Value done = internal::rounds_of(client).agree(
      client, call, mine, [&](absl::Span<const std::string>) -> Rounds::Value {
        TESSERA_RETURN_IF_ERROR(file->commit(files::NewFile::Replace::kYes));
        TESSERA_RETURN_IF_ERROR(files::sync_folder(files::folder_of(path)));
        return std::string();
      });
  return done.status();
}

// What stands against writing the tensor, known on all clients.
Status check_tensor(const Client& client, const DTensor& tensor, absl::string_view subject) {
  TESSERA_RETURN_IF_ERROR(with_context(internal::facts_of(tensor).error, subject));
  return internal::check_mesh_of(client, tensor.layout().mesh(), subject);
}

std::string describe(const DTensor& tensor) {
  return absl::StrCat(dtype_name(tensor.dtype()), " ", shape_to_string(tensor.shape()), " under ",
                      tensor.layout().to_string_with_mesh());
}

Status check_name(absl::string_view name) {
  const bool is_legal = !name.empty() && name.size() <= kMaxNameBytes && name != "__metadata__" &&
                        std::none_of(name.begin(), name.end(), [](char c) {
                          const auto byte = static_cast<unsigned char>(c);
                          return byte < 0x20 || byte == 0x7f;
                        });
  if (!is_legal || !files::check_utf8(name).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor is called ", in_quotes(name), "; a name is UTF-8 of 1 to ",
                     kMaxNameBytes, " bytes without control characters, and not \"__metadata__\""));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<DTensor> read_npy(const Client& client, absl::string_view path,
                           const LayoutArg& layout_arg) {
  const StatusOr<Layout>& layout = layout_arg.layout();
  TESSERA_RETURN_IF_ERROR(internal::check_open(client, "read_npy"));
  const std::string call = absl::StrCat("read_npy ", quoted_whole(path));
  Status status = layout.status();
  if (status.ok()) status = internal::check_mesh_of(client, layout->mesh(), call);
  const std::string text =
      status.ok() ? absl::StrCat(call, " under ", layout->to_string_with_mesh()) : call;
  TESSERA_RETURN_IF_ERROR(
      agree_on_call(client, call, text, status, [] { return std::string(); }).status());
  std::optional<DTensor> tensor;
  const auto read = [&]() -> Status {
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const files::RandomAccessFile> file,
                             files::RandomAccessFile::open(std::string(path)));
    TESSERA_ASSIGN_OR_RETURN(const files::NpyHeader header, files::read_npy_header(*file));
    TESSERA_RETURN_IF_ERROR(with_context(layout->validate_shape(header.shape), call));
    Status filled;
    tensor = internal::from_function_raw(header.dtype, header.shape, layout,
                                         [&](const Box& box, std::byte* out) {
                                           if (filled.ok())
                                             filled = files::read_npy_box(*file, header, box, out);
                                         });
    TESSERA_RETURN_IF_ERROR(filled);
    return tensor->status();
  };
  TESSERA_RETURN_IF_ERROR(internal::rounds_of(client).agree_ok(client, call, read()));
  return *std::move(tensor);
}

Status write_npy(const Client& client, absl::string_view path, const DTensor& tensor) {
  TESSERA_RETURN_IF_ERROR(internal::check_open(client, "write_npy"));
  const std::string call = absl::StrCat("write_npy ", quoted_whole(path));
  Status refused = check_tensor(client, tensor, call);
  if (refused.ok() && tensor.dtype() == DType::kBFloat16) {
    refused = absl::InvalidArgumentError(
        absl::StrCat(call, ": .npy has no bf16; cast to f32, or write a .safetensors file"));
  }
  const std::string header =
      refused.ok() ? files::format_npy_header(tensor.dtype(), tensor.shape()) : "";
  const auto begin = static_cast<int64_t>(header.size());
  return write_file(client, std::string(path), call, absl::StrCat(call, " of ", describe(tensor)),
                    refused, header, {{&tensor, begin}},
                    begin + num_bytes(tensor.shape(), tensor.dtype()));
}

Status write_safetensors(const Client& client, absl::string_view path,
                         absl::Span<const NamedTensor> tensors,
                         std::map<std::string, std::string> metadata) {
  TESSERA_RETURN_IF_ERROR(internal::check_open(client, "write_safetensors"));
  const std::string call = absl::StrCat("write_safetensors ", quoted_whole(path));
  std::string text = call;
  Status refused;
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& named : tensors) {
    refused.Update(check_name(named.name));
    refused.Update(
        check_tensor(client, named.tensor, absl::StrCat("tensor ", in_quotes(named.name))));
    absl::StrAppend(&text, "; ", in_quotes(named.name), " ", describe(named.tensor));
    order.push_back(&named);
  }
  metadata.emplace("format", "pt");
  for (const auto& [key, value] : metadata) absl::StrAppend(&text, "; ", key, " = ", value);
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int64_t sizes[] = {dtype_size(a->tensor.dtype()), dtype_size(b->tensor.dtype())};
    return sizes[0] != sizes[1] ? sizes[0] > sizes[1] : a->name < b->name;
  });
  std::vector<files::SafetensorsEntry> entries;
  int64_t bytes = 0;
  for (const NamedTensor* named : order) {
    const int64_t begin = bytes;
    bytes += num_bytes(named->tensor.shape(), named->tensor.dtype());
    entries.push_back({named->name, std::string(files::safetensors_name(named->tensor.dtype())),
                       named->tensor.shape(), begin, bytes});
  }
  std::string header;
  if (refused.ok()) {
    StatusOr<std::string> formatted = files::format_safetensors_header(entries, metadata);
    refused = with_context(formatted.status(), call);
    if (formatted.ok()) header = *std::move(formatted);
  }
  std::vector<PlacedTensor> placed;
  for (size_t i = 0; i < order.size(); ++i) {
    placed.push_back({&order[i]->tensor, static_cast<int64_t>(header.size()) + entries[i].begin});
  }
  return write_file(client, std::string(path), call, text, refused, header, placed,
                    static_cast<int64_t>(header.size()) + bytes);
}

}  // namespace tessera
