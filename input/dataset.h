// SPDX-License-Identifier: Apache-2.0
//
// Dataset: which examples a program reads, and in which order.
//
//   StatusOr<Dataset> images = Dataset::idx("train-images-idx3-ubyte");
//   const Dataset batches = images->shuffle(/*seed=*/7).map(to_float, 4).repeat().batch(128);
//   StatusOr<HostIterator> batch = batches.iterate();     here; on devices: loader.h
//
// A Dataset is a value that describes: nothing but headers of files, and where their lines begin,
// is read before an iterator asks. The order is a function of the description alone, so it is the
// same for any number of clients and devices, and an iterator can begin anywhere in it.
//
//   random access   range, slices, files, a Source with a size; all operations but filter keep it.
//                   Each client reads only the elements that it needs
//   stream          a generator, a Source without a size, and all operations after filter. Every
//                   client reads all elements up to the last one
//
// A call that is wrong makes a Dataset that carries the error, which iterate() and distribute()
// return; so does a Dataset that was moved from. A file keeps its descriptor as long as the data
// set. Functions must be pure: called again with an equal element they return an equal result. An
// exception of theirs is Unknown. They may be called by several threads at once if one of the
// iterators of the data set has parallelism or prefetches, and else by the thread that iterates.
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
#include "base/status.h"
#include "input/csv_options.h"
#include "input/iterator_state.h"
#include "input/source.h"

namespace tessera::input {

// Whether a last batch that the elements do not fill is kept.
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

  // The next element, or batch: each array then has the elements along a new dim 0. Nothing at the
  // end, as often as asked. An error stays: every later call returns it; a new iterator from
  // state() tries again. The error names the element and the cause.
  StatusOr<std::optional<Element>> next();
  // The state of the element or batch that comes next.
  IteratorState state() const;

 private:
  friend class Dataset;
  explicit HostIterator(std::unique_ptr<internal::BatchReader> reader, bool is_batched);

  std::unique_ptr<internal::BatchReader> reader_;  // null: moved from
  bool is_batched_;
};

class Dataset {
 public:
  // InvalidArgument for a null source, or one of a negative size.
  static StatusOr<Dataset> from_source(std::shared_ptr<const Source> source);
  // Element i is part i of each array along dim 0; these have equal sizes.
  static StatusOr<Dataset> from_slices(Element tensors);
  // The i64 scalars 0 to n - 1.
  static Dataset range(int64_t n);
  // Part i of the array in the file along dim 0. Versions 1 to 3, either byte order, C order and
  // Fortran order. An array in Fortran order is read in large pieces where elements are read in a
  // row, else number by number.
  static StatusOr<Dataset> npy(std::string file);
  // As npy(), for the format of MNIST (not compressed): u8, i8, i32, f32 or f64.
  static StatusOr<Dataset> idx(std::string file);
  // A line as one scalar for each column, as RFC 4180 says, without newlines in fields. A number
  // is finite and fits its dtype; a bool is 0, 1, true or false. Each file has a line at least. It
  // is UTF-8; a byte order mark at its front is skipped.
  static StatusOr<Dataset> csv(std::vector<std::string> files, std::vector<DType> columns,
                               const CsvOptions& options = {});
  // The bytes of a line, u8 [-1], without its newline (LF or CR LF), and without a byte order mark
  // of UTF-8 at the front of the file.
  static StatusOr<Dataset> text_lines(std::vector<std::string> files);
  // Records of `bytes` bytes, u8 [bytes]. A file is a whole number of them.
  static StatusOr<Dataset> fixed_records(std::vector<std::string> files, int64_t bytes);
  // A stream: fn(0), fn(1), ... up to the first that is nothing; again for each epoch and iterator.
  static StatusOr<Dataset> generator(
      std::vector<TensorSpec> spec,
      std::function<StatusOr<std::optional<Element>>(int64_t index)> fn);

  // All elements in another order each epoch: a permutation of their indices that the seed and the
  // epoch give, so that no buffer is needed. InvalidArgument for a stream and an endless data set.
  Dataset shuffle(uint64_t seed) const;
  // Calls fn for each element; results keep their order. With a parallelism of 2 and more so many
  // elements are read and mapped at once; else one.
  Dataset map(std::function<StatusOr<Element>(Element)> fn, int parallelism = 0) const;
  // The elements for which `keep` is true. From here on a stream.
  Dataset filter(std::function<StatusOr<bool>(const Element&)> keep) const;
  // So many epochs one after another; endless without a number.
  Dataset repeat(std::optional<int64_t> epochs = {}) const;
  // The first n elements; all but these.
  Dataset take(int64_t n) const;
  Dataset skip(int64_t n) const;
  // Elements index, index + num, index + 2 num, ...
  Dataset shard(int64_t num, int64_t index) const;
  // Keeps elements in memory once they were read: the elements of epoch 0, for every epoch.
  // InvalidArgument for an endless data set.
  Dataset cache() const;
  // The last operation.
  Dataset batch(int64_t size, Remainder remainder = Remainder::kKeep) const;

  // The spec of the elements, or of the batches, whose size is -1 unless the remainder is dropped.
  // For a mapped data set this call reads the first element and returns its spec. Empty where there
  // is none, or an error.
  std::vector<TensorSpec> element_spec() const;
  // Elements or batches of an iterator. Nothing: endless, a stream, or an error.
  std::optional<int64_t> cardinality() const;
  // The files it is read from, in order.
  std::vector<std::string> files() const;
  // The error that it carries.
  Status status() const;

  // InvalidArgument for a state of another data set, or beyond the end.
  StatusOr<HostIterator> iterate(const IteratorState& from = {}) const;

 private:
  friend struct internal::DatasetAccess;
  explicit Dataset(std::shared_ptr<const internal::DatasetRep> rep) : rep_(std::move(rep)) {}
  // A data set that was moved from has a representation that carries an error.
  const internal::DatasetRep& rep() const;

  std::shared_ptr<const internal::DatasetRep> rep_;  // null: moved from
};

}  // namespace tessera::input

#endif  // TESSERA_INPUT_DATASET_H_
