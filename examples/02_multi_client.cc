// SPDX-License-Identifier: Apache-2.0
//
// Several clients: one program, started four times, with two devices in each process.
//
//   bazel build //job:tessera_run //examples:02_multi_client
//   bazel-bin/job/tessera_run --clients 4 --devices-per-client 2 bazel-bin/examples/02_multi_client
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tessera/eigen.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

// The shards that this client holds, one per line.
StatusOr<std::string> local_shards(const DTensor& tensor) {
  std::string text;
  for (int i = 0; i < tensor.num_local_shards(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(ShardView<int64_t> shard, tensor.shard<int64_t>(i));
    absl::StrAppend(&text, "  ", tensor.layout().to_string(), " ", shard.box.to_string(), ":");
    for (int64_t value : shard.data) absl::StrAppend(&text, " ", value);
    text += "\n";
  }
  return text;
}

Status multi_client() {
  // 1. Every client runs this same function and makes the same calls in the same order. The
  //    environment that tessera_run sets tells connect() its client id and the addresses.
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  const int64_t num_devices = static_cast<int64_t>(client.devices().size());
  std::printf("client %d of %d has %zu of %ld devices\n", client.client_id(), client.num_clients(),
              client.local_devices().size(), static_cast<long>(num_devices));

  // 2. The mesh spans the devices of all clients.
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", num_devices}}));

  // 3. Shards are made in place, from their global indices: no client ever holds the whole tensor,
  //    and nothing is sent.
  const Shape shape = {8, 8};
  const DTensor rows = from_function<int64_t>(
      shape, Layout::parse(mesh, "[x, -]"), [&](const Box& box, absl::Span<int64_t> out) {
        for (size_t i = 0; i < out.size(); ++i) {
          const int64_t row = box.offsets[0] + i / box.sizes[1];
          const int64_t col = box.offsets[1] + i % box.sizes[1];
          out[i] = 10 * row + col;
        }
      });

  // 4. A plan shows a relayout before it runs. It is a value, the same on every client, so one
  //    client prints it.
  TESSERA_ASSIGN_OR_RETURN(Layout columns_layout, Layout::parse(mesh, "[-, x]"));
  TESSERA_ASSIGN_OR_RETURN(RelayoutPlan plan,
                           plan_relayout(rows.layout(), columns_layout, shape, DType::kInt64));
  if (client.client_id() == 0) std::printf("%s", plan.explain().c_str());

  // 5. Rows to columns to a copy on every device. Each device reads its missing parts directly from
  //    the memory of the device that has them, also in another process.
  const DTensor columns = relayout(rows, columns_layout);
  const DTensor copies = relayout(columns, Layout::replicated(mesh, 2));
  TESSERA_ASSIGN_OR_RETURN(std::string row_text, local_shards(rows));
  TESSERA_ASSIGN_OR_RETURN(std::string column_text, local_shards(columns));
  std::printf("%s%s", row_text.c_str(), column_text.c_str());
  TESSERA_ASSIGN_OR_RETURN(HostTensor<int64_t> host, copies.to_host<int64_t>());
  std::printf("every client has the last element, %ld\n", static_cast<long>(host.data.back()));

  // 6. Partial sums: each device adds up its own rows. Its result is a term of the sum along x, and
  //    the layout says so; a relayout to a layout without the partial axis adds the terms.
  const DTensor terms =
      local_map("[-] sum{x}", {8}, DType::kInt64, {rows}, [](LocalContext& local) {
        const auto in = local.input<int64_t>(0).eigen<2>();
        const Eigen::array<int, 1> over_rows = {0};
        local.output<int64_t>().eigen<1>() = in.sum(over_rows);
      });
  const DTensor sums = relayout(terms, Layout::replicated(mesh, 1));
  TESSERA_ASSIGN_OR_RETURN(std::string sum_text, local_shards(sums));
  if (client.client_id() == 0) std::printf("sums of the columns\n%s", sum_text.c_str());

  // 7. No client passes before all have arrived. The error names a client that does not arrive
  //    within 10 s (see 04_failure.cc).
  TESSERA_RETURN_IF_ERROR(mesh.barrier("before_exit", absl::Seconds(10)));
  TESSERA_RETURN_IF_ERROR(client.shutdown());
  std::printf("done\n");
  return absl::OkStatus();
}

}  // namespace

int main() {
  const Status status = multi_client();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
