// SPDX-License-Identifier: Apache-2.0
//
// Checks of tensors: the oracle of values, and meshes and layouts from their text.
//
// The oracle is slow and dense: it knows the value of every element of the global tensor, and looks
// at every element of every local shard.
#ifndef TESSERA_TESTS_SUPPORT_TENSORS_H_
#define TESSERA_TESTS_SUPPORT_TENSORS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"

namespace tessera::testing {

// A live mesh from "{x=2, y=2} on 3,2,1,0". Collective over its clients.
StatusOr<Mesh> live_mesh(const Client& client, absl::string_view text);

// Calls fn(index, place) for every element of the box: its global index, and where it is in the
// dense buffer of the box.
void for_each_element(const Box& box,
                      const std::function<void(const std::vector<int64_t>&, int64_t)>& fn);

// The row-major number of an index in a shape.
int64_t flat_index(const Shape& shape, const std::vector<int64_t>& index);

// Checks that every local shard holds its box of the tensor whose element i is value(i).
template <class T>
Status expect_shards(const DTensor& tensor, const std::function<T(int64_t)>& value) {
  for (int s = 0; s < tensor.num_local_shards(); ++s) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<T> shard, tensor.shard<T>(s));
    TESSERA_REQUIRE(static_cast<int64_t>(shard.data.size()) == shard.box.num_elements());
    Status status;
    for_each_element(shard.box, [&](const std::vector<int64_t>& index, int64_t place) {
      const int64_t i = flat_index(tensor.shape(), index);
      if (status.ok() && !(shard.data[place] == value(i))) {
        status = absl::InternalError(absl::StrCat(
            "shard ", s, " of ", tensor.layout().to_string_with_mesh(), " ",
            shape_to_string(tensor.shape()), ": element ", i, " is ",
            static_cast<double>(shard.data[place]), ", not ", static_cast<double>(value(i))));
      }
    });
    TESSERA_RETURN_IF_ERROR(status);
  }
  return tensor.await();
}

// As expect_shards(), for the tensor whose element i is i.
template <class T>
Status expect_iota(const DTensor& tensor) {
  return expect_shards<T>(tensor, [](int64_t i) { return T(i); });
}

// Checks one local shard, by global device id, against its elements. Other clients pass.
template <class T>
Status expect_device(const Client& client, const DTensor& tensor, int device_id,
                     const std::vector<T>& elements) {
  const Mesh& mesh = tensor.layout().mesh();
  int shard = 0;
  for (const Device& device : client.local_devices()) {
    if (!mesh.position_of_device(device.id).has_value()) continue;
    if (device.id == device_id) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<T> view, tensor.shard<T>(shard));
      const std::vector<T> held(view.data.begin(), view.data.end());
      TESSERA_REQUIRE(held == elements, "device ", device_id, " under ",
                      tensor.layout().to_string());
    }
    ++shard;
  }
  return absl::OkStatus();
}

// The elements that one device holds.
template <class T>
struct DeviceValue {
  int device;
  std::vector<T> elements;
};

// Checks several devices; then waits for the tensor.
template <class T>
Status expect_devices(const Client& client, const DTensor& tensor,
                      const std::vector<DeviceValue<T>>& values) {
  for (const DeviceValue<T>& value : values) {
    TESSERA_RETURN_IF_ERROR(expect_device<T>(client, tensor, value.device, value.elements));
  }
  return tensor.await();
}

// Every layout of that rank on the mesh by whole axes: each axis on one dim or none, in every order
// within a dim; with `partial`, also with each unused set of axes partial (sum).
std::vector<Layout> all_layouts(const Mesh& mesh, int rank, bool partial);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_TENSORS_H_
