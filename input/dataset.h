// SPDX-License-Identifier: Apache-2.0
//
// Dataset: which examples a program reads, and in which order.
//
//   StatusOr<Dataset> images = Dataset::idx("train-images-idx3-ubyte");
//   const Dataset batches = images->shuffle(/*seed=*/7).map(to_float, 4).repeat().batch(128);
//   StatusOr<HostIterator> batch = batches.iterate();     here; on devices: loader.h
//
// A Dataset is a description. Before an iterator asks, only the headers of files and the positions
// of their lines are read. The order is a function of the description alone, so it is the same for
// any number of clients and devices, and an iterator can begin anywhere in it.
//
//   random access   range, slices, files, a Source with a size; all operations but filter keep it.
//                   Each client reads only the elements that it needs
//   stream          a generator, a Source without a size, and all operations after filter. Every
//                   client reads all elements up to the last one
//
// - A wrong call makes a Dataset that carries the error; iterate() and distribute() return it. A
//   Dataset that was moved from carries an error too.
// - A data set keeps its files open as long as it lives.
// - Functions must be pure: for an equal element they return an equal result.
// - An exception of a function becomes Unknown.
// - Functions may be called by several threads at once if an iterator of the data set has
//   parallelism or prefetches, else by the thread that iterates.
//
// TF: tf.data.Dataset.
#ifndef TESSERA_INPUT_DATASET_H_
#define TESSERA_INPUT_DATASET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/status.h"
#include "input/csv_options.h"
#include "input/iterator_state.h"
#include "input/source.h"

namespace TESSERA_PUBLIC tessera {
namespace input {

// Whether to keep a last batch that the elements do not fill.
enum class Remainder { kKeep, kDrop };

namespace internal {
struct DatasetRep;
struct DatasetAccess;
class BatchReader;
}  // namespace internal

// Reads a data set in this process. Move-only; used by one thread at a time.
class HostIterator {
 public:
  HostIterator(HostIterator&&) noexcept;
  HostIterator& operator=(HostIterator&&) noexcept;
  ~HostIterator();

  // Returns the next element or batch. In a batch each array has the elements along a new dim 0. At
  // the end every call returns nothing. After an error every later call returns the same error,
  // which names the element and the cause; a new iterator from state() tries again.
  StatusOr<std::optional<Element>> next();
  // The state of the next element or batch.
  IteratorState state() const;

 private:
  friend class Dataset;
  explicit HostIterator(std::unique_ptr<internal::BatchReader> reader, bool is_batched);

  std::unique_ptr<internal::BatchReader> reader_;  // null: moved from
  bool is_batched_;
};

class Dataset {
 public:
  // InvalidArgument for a null source, or a source of negative size.
  static StatusOr<Dataset> from_source(std::shared_ptr<const Source> source);
  // Element i is part i of each array along dim 0; these have equal sizes.
  static StatusOr<Dataset> from_slices(Element tensors);
  // The i64 scalars 0 to n - 1.
  static Dataset range(int64_t n);
  // Element i is part i of the array in the file along dim 0. Reads versions 1 to 3, either byte
  // order, C order and Fortran order. In Fortran order consecutive elements are read in large
  // pieces, and other elements number by number. Bytes after the array are ignored.
  static StatusOr<Dataset> npy(std::string file);
  // Like npy(), for the uncompressed format of MNIST: u8, i8, i32, f32 or f64.
  static StatusOr<Dataset> idx(std::string file);
  // An element is a line with one scalar per column, as RFC 4180 says, without newlines in fields.
  // A number is finite and fits its dtype; a bool is 0, 1, true or false. Each file has at least
  // one line. It is UTF-8; a byte order mark at its front is skipped.
  static StatusOr<Dataset> csv(std::vector<std::string> files, std::vector<DType> columns,
                               const CsvOptions& options = {});
  // An element is the bytes of a line, u8 [-1], without its newline (LF or CR LF), and without a
  // UTF-8 byte order mark at the front of the file.
  static StatusOr<Dataset> text_lines(std::vector<std::string> files);
  // An element is a record of `bytes` bytes, u8 [bytes]. Each file is a whole number of records.
  static StatusOr<Dataset> fixed_records(std::vector<std::string> files, int64_t bytes);
  // A stream: fn(0), fn(1), ... up to the first empty result; again for each epoch and iterator.
  static StatusOr<Dataset> generator(
      std::vector<TensorSpec> spec,
      std::function<StatusOr<std::optional<Element>>(int64_t index)> fn);

  // All elements in another order each epoch. The seed and the epoch give a permutation of the
  // indices, so no buffer is needed. InvalidArgument for a stream and an endless data set.
  Dataset shuffle(uint64_t seed) const;
  // Calls fn for each element; results keep their order. With a parallelism of 2 or more, that many
  // elements are read and mapped at once, else one.
  Dataset map(std::function<StatusOr<Element>(Element)> fn, int parallelism = 0) const;
  // Keeps the elements for which `keep` is true. The result is a stream.
  Dataset filter(std::function<StatusOr<bool>(const Element&)> keep) const;
  // `epochs` epochs one after another; endless without a number.
  Dataset repeat(std::optional<int64_t> epochs = {}) const;
  // take() keeps the first n elements, skip() all others.
  Dataset take(int64_t n) const;
  Dataset skip(int64_t n) const;
  // Elements index, index + num, index + 2 num, ...
  Dataset shard(int64_t num, int64_t index) const;
  // Keeps each element in memory after its first read. Every epoch has the elements of epoch 0.
  // InvalidArgument for an endless data set.
  Dataset cache() const;
  // Must be the last operation.
  Dataset batch(int64_t size, Remainder remainder = Remainder::kKeep) const;

  // The spec of the elements or batches. The size of a batch is -1 unless the remainder is dropped.
  // For a mapped data set this call reads the first element and returns its spec. Empty for a data
  // set that carries an error, and if the first element cannot be read.
  std::vector<TensorSpec> element_spec() const;
  // The number of elements or batches of an iterator. Nothing for an endless data set, a stream, or
  // an error.
  std::optional<int64_t> cardinality() const;
  // The files of the source, in order.
  std::vector<std::string> files() const;
  // The error that the data set carries.
  Status status() const;

  // InvalidArgument for a state of another data set, and for a state beyond the end.
  StatusOr<HostIterator> iterate(const IteratorState& from = {}) const;

 private:
  friend struct internal::DatasetAccess;
  explicit Dataset(std::shared_ptr<const internal::DatasetRep> rep) : rep_(std::move(rep)) {}
  // The representation; for a data set that was moved from, a representation with an error.
  const internal::DatasetRep& rep() const;

  std::shared_ptr<const internal::DatasetRep> rep_;  // null: moved from
};

}  // namespace input
}  // namespace tessera

#endif  // TESSERA_INPUT_DATASET_H_
